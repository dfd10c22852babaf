// Lease: a reservation that ends with the work.  Put this file beside `service.ts`, which is generated
// from the service's OpenAPI document: docs/reference/typescript.md.

import createClient, { type Client } from "openapi-fetch";

import type { components, paths } from "./service.js";

export type Selector = Client<paths>;
export type Selection = components["schemas"]["Selection"];
export type LeaseRequest = components["schemas"]["SelectAndReserveRequest"];
type ErrorResponse = components["schemas"]["ErrorBody"] | components["schemas"]["OverloadedBody"];

const ATTEMPTS_MAX = 3;
// With --queue-threshold, choose a timeout above --queue-timeout-secs.
const CALL_TIMEOUT_MS = 5_000;
const RETRY_PAUSE_MS = 100;
// Far below --reservation-ttl-secs (default: an hour).
const RENEWAL_INTERVAL_MS = 60_000;

// The service refused a request.
export class RefusalError extends Error {
  readonly code: string;

  constructor(
    readonly status: number,
    response: ErrorResponse,
  ) {
    super("message" in response ? response.message : response.error);
    // The error of a busy fleet has Dynamo's form: `code` is the status, as a number.
    this.code = "type" in response ? response.type : response.code;
  }
}

function isErrorResponse(error: unknown): error is ErrorResponse {
  return typeof error === "object" && error !== null;
}

export function createSelector(baseUrl: string, apiKey?: string, http = fetch): Selector {
  const headers = apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` };
  return createClient<paths>({ baseUrl, headers, fetch: (request) => http(request) });
}

// Reports about a request are sent in the background, in order; a failed report does not fail the
// request.
export class Lease {
  #reports: Promise<unknown> = Promise.resolve();
  #hasBegun = false;
  #tokens = 0;
  readonly #renewal = setInterval(() => this.#renew(), RENEWAL_INTERVAL_MS);

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
    this.#queueReport(() =>
      this.selector.POST("/reservations/{reservation_id}/prefill_complete", this.#reservationOptions()),
    );
  }

  // Reports `n` more output tokens.
  tokens(n: number): void {
    this.firstToken();
    const size = this.selection.block_size;
    const blocks = Math.floor((this.#tokens + n) / size) - Math.floor(this.#tokens / size);
    this.#tokens += n;
    for (let block = 0; block < blocks; block++) {
      this.#queueReport(() =>
        this.selector.POST("/reservations/{reservation_id}/output_block", this.#reservationOptions()),
      );
    }
  }

  async end(outcome?: "ok" | "failure"): Promise<void> {
    clearInterval(this.#renewal);
    this.#queueReport(() => freeReservation(this.selector, this.reservationId, outcome));
    await this.#reports;
  }

  #renew(): void {
    this.#queueReport(() => this.selector.POST("/reservations/{reservation_id}/renew", this.#reservationOptions()));
  }

  #queueReport(call: () => Promise<unknown>): void {
    this.#reports = this.#reports.then(call).catch(() => undefined);
  }

  #reservationOptions() {
    const path = { reservation_id: this.reservationId };
    return { params: { path }, signal: AbortSignal.timeout(CALL_TIMEOUT_MS) };
  }
}

// Runs `work` on the rank that the service chooses for a prompt; an exception of `work` counts as a
// failure of the rank.
export async function withLease<T>(
  selector: Selector,
  request: LeaseRequest,
  work: (lease: Lease) => Promise<T>,
): Promise<T> {
  const reservation_id = request.reservation_id ?? request.selection_id ?? crypto.randomUUID();
  const selection = await reserveRank(selector, { ...request, reservation_id });
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

function freeReservation(selector: Selector, reservation_id: string, outcome?: "ok" | "failure") {
  const query = outcome === undefined ? {} : { outcome };
  return selector.DELETE("/reservations/{reservation_id}", {
    params: { path: { reservation_id }, query },
    signal: AbortSignal.timeout(CALL_TIMEOUT_MS),
  });
}

// Repeats the request after a lost response: `repeat` returns the first reservation, if any.
async function reserveRank(
  selector: Selector,
  request: LeaseRequest & { reservation_id: string },
): Promise<Selection> {
  for (let attempt = 1; ; attempt++) {
    try {
      const body: LeaseRequest = attempt === 1 ? request : { ...request, repeat: true };
      const signal = AbortSignal.timeout(CALL_TIMEOUT_MS);
      const { data, error, response } = await selector.POST("/select_and_reserve", { body, signal });
      if (data !== undefined) {
        return data;
      }
      if (!isErrorResponse(error)) {
        throw new Error(`status ${response.status} without a JSON error: check proxies and baseUrl`);
      }
      throw new RefusalError(response.status, error);
    } catch (error) {
      if (error instanceof RefusalError) {
        throw error;
      }
      if (attempt === ATTEMPTS_MAX) {
        await freeReservation(selector, request.reservation_id).catch(() => undefined);
        throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_PAUSE_MS * attempt));
    }
  }
}
