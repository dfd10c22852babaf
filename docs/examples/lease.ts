// A booking that ends with the work it is for.  It stands beside `service.ts`, which is generated
// from the service's own document: docs/reference/typescript.md.

import createClient, { type Client } from "openapi-fetch";

import type { components, paths } from "./service.js";

export type Selector = Client<paths>;
export type Selection = components["schemas"]["Selection"];
export type Wanted = components["schemas"]["SelectAndReserveRequest"];
type Refusal = components["schemas"]["ErrorBody"] | components["schemas"]["OverloadedBody"];

const ATTEMPTS = 3;
// Longer than requests may wait, where --queue-threshold is on.
const ANSWER_MS = 5_000;
const PAUSE_MS = 100;
// Far below --reservation-ttl-secs, which is an hour unless it is set.
const RENEWAL_MS = 60_000;

// The service has answered, and said no.
export class Refused extends Error {
  readonly code: string;

  constructor(
    readonly status: number,
    refusal: Refusal,
  ) {
    super("message" in refusal ? refusal.message : refusal.error);
    // That of a busy fleet has the form of the reference: its code is the status, as a number.
    this.code = "type" in refusal ? refusal.type : refusal.code;
  }
}

function isRefusal(error: unknown): error is Refusal {
  return typeof error === "object" && error !== null;
}

export function connected(baseUrl: string, apiKey?: string, http = fetch): Selector {
  const headers = apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` };
  return createClient<paths>({ baseUrl, headers, fetch: (request) => http(request) });
}

// What is told of one request's life goes on in the background, in order; none of it may fail the
// request.
export class Lease {
  #told: Promise<unknown> = Promise.resolve();
  #hasBegun = false;
  #tokens = 0;
  readonly #renewal = setInterval(() => this.#renew(), RENEWAL_MS);

  constructor(
    readonly selection: Selection,
    readonly reservationId: string,
    private readonly selector: Selector,
  ) {}

  firstToken(): void {
    if (this.#hasBegun) {
      return;
    }
    this.#hasBegun = true;
    this.#tell(() =>
      this.selector.POST("/reservations/{reservation_id}/prefill_complete", this.#named()),
    );
  }

  // So many more tokens of output.
  tokens(n: number): void {
    this.firstToken();
    const size = this.selection.block_size;
    const blocks = Math.floor((this.#tokens + n) / size) - Math.floor(this.#tokens / size);
    this.#tokens += n;
    for (let block = 0; block < blocks; block++) {
      this.#tell(() =>
        this.selector.POST("/reservations/{reservation_id}/output_block", this.#named()),
      );
    }
  }

  async end(outcome?: "ok" | "failure"): Promise<void> {
    clearInterval(this.#renewal);
    this.#tell(() => freed(this.selector, this.reservationId, outcome));
    await this.#told;
  }

  #renew(): void {
    this.#tell(() => this.selector.POST("/reservations/{reservation_id}/renew", this.#named()));
  }

  #tell(call: () => Promise<unknown>): void {
    this.#told = this.#told.then(call).catch(() => undefined);
  }

  #named() {
    const path = { reservation_id: this.reservationId };
    return { params: { path }, signal: AbortSignal.timeout(ANSWER_MS) };
  }
}

// Runs `work` on the rank that the service chooses for a prompt; when `work` throws, that rank is to
// blame.
export async function leased<T>(
  selector: Selector,
  wanted: Wanted,
  work: (lease: Lease) => Promise<T>,
): Promise<T> {
  const reservation_id = wanted.reservation_id ?? wanted.selection_id ?? crypto.randomUUID();
  const selection = await booked(selector, { ...wanted, reservation_id });
  const lease = new Lease(selection, reservation_id, selector);
  let outcome: "ok" | "failure" = "failure";
  try {
    const result = await work(lease);
    outcome = "ok";
    return result;
  } finally {
    await lease.end(outcome);
  }
}

function freed(selector: Selector, reservation_id: string, outcome?: "ok" | "failure") {
  const query = outcome === undefined ? {} : { outcome };
  return selector.DELETE("/reservations/{reservation_id}", {
    params: { path: { reservation_id }, query },
    signal: AbortSignal.timeout(ANSWER_MS),
  });
}

// When an answer is lost the booking is asked for again, so that there is one and not two.
async function booked(
  selector: Selector,
  wanted: Wanted & { reservation_id: string },
): Promise<Selection> {
  for (let attempt = 1; ; attempt++) {
    try {
      const body: Wanted = attempt === 1 ? wanted : { ...wanted, repeat: true };
      const signal = AbortSignal.timeout(ANSWER_MS);
      const answer = await selector.POST("/select_and_reserve", { body, signal });
      const { status } = answer.response;
      if (answer.data !== undefined) {
        return answer.data;
      }
      if (!isRefusal(answer.error)) {
        throw new Error(`${status}: not an answer of the service`); // of a proxy before it
      }
      throw new Refused(status, answer.error);
    } catch (failure) {
      if (failure instanceof Refused) {
        throw failure;
      }
      if (attempt === ATTEMPTS) {
        await freed(selector, wanted.reservation_id).catch(() => undefined);
        throw failure;
      }
      await new Promise((go) => setTimeout(go, PAUSE_MS * attempt));
    }
  }
}
