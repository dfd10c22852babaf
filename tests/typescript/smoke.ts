// Calls of a gateway in TypeScript to the service, through a client that was generated from the
// service's own document (`service.ts`), and the lease of docs/examples on top of the client.
//
//     node smoke.js URL
//
// The program registers two workers of a separate model and deletes both at the end.

import assert from "node:assert/strict";

import { type LeaseRequest, RefusalError, createSelector, withLease } from "./lease.js";
import type { paths } from "./service.js";

type Free = paths["/reservations/{reservation_id}"]["delete"]["parameters"];

const SCOPE = { model_name: "typescript-smoke", tenant_id: "default" };
const WORKERS = [9_000_001, 9_000_002];
const BLOCK_SIZE = 4;
const TOKENS = Array.from({ length: 34 }, (_, n) => n);

const url = process.argv[2];
assert(url, "usage: node smoke.js URL");
const selector = createSelector(url);

async function register(worker_id: number): Promise<void> {
  const { data, error } = await selector.POST("/workers", {
    body: {
      ...SCOPE,
      worker_id,
      endpoint: `http://worker-${worker_id}:8000`,
      block_size: BLOCK_SIZE,
      kv_events_endpoint: "tcp://127.0.0.1:9",
    },
  });
  assert.equal(error, undefined);
  assert.equal(data?.lifecycle, "schedulable");
}

async function testIdempotentBooking(reservation_id: string): Promise<void> {
  const body: LeaseRequest = { ...SCOPE, reservation_id, token_ids: TOKENS };
  const first = await selector.POST("/select_and_reserve", { body });
  assert(first.data, JSON.stringify(first.error));
  assert(WORKERS.includes(first.data.worker_id));
  assert.equal(first.data.endpoint, `http://worker-${first.data.worker_id}:8000`);
  assert.equal(first.data.block_size, BLOCK_SIZE);
  assert.equal(first.data.effective_prefill_tokens, TOKENS.length);
  assert.deepEqual(first.data.overlap.dp, { [first.data.dp_rank]: 0 });

  const repeated = await selector.POST("/select_and_reserve", { body: { ...body, repeat: true } });
  assert.deepEqual(repeated.data, first.data);
  const conflict = await selector.POST("/select_and_reserve", { body });
  assert(conflict.error);
  assert.equal(new RefusalError(conflict.response.status, conflict.error).code, "conflict");
}

async function testBothDialects(selection_id: string): Promise<void> {
  const scope = { model_name: SCOPE.model_name, routing_group: SCOPE.tenant_id };
  const body: LeaseRequest = { ...scope, selection_id, token_ids: TOKENS };
  const { data } = await selector.POST("/select_and_reserve", { body });
  assert.equal(data?.reservation_id, selection_id);
  assert.equal(data.selection_id, selection_id);
  assert.equal(data.routing_group, data.tenant_id);
  assert.equal(data.sequence_hashes?.length, Math.floor(TOKENS.length / BLOCK_SIZE));
  assert.equal(data.isl_tokens, TOKENS.length);
  assert.equal(data.potential_decode_blocks, Math.ceil(TOKENS.length / BLOCK_SIZE));
  const path = { reservation_id: selection_id };
  const { data: ended } = await selector.DELETE("/reservations/{reservation_id}", {
    params: { path },
  });
  assert.equal(ended?.status, "ok");

  const advice = await selector.POST("/select", { body: { ...scope, token_ids: TOKENS, advisory: true } });
  assert.equal(advice.data?.worker_load?.active_prefill_tokens, 0);
}

async function testReservationLife(reservation_id: string): Promise<void> {
  const named = { params: { path: { reservation_id } } };
  const steps = [
    await selector.POST("/reservations/{reservation_id}/prefill_complete", named),
    await selector.POST("/reservations/{reservation_id}/output_block", named),
    await selector.POST("/reservations/{reservation_id}/output_block", {
      ...named,
      body: { decay_fraction: 0.5 },
    }),
    await selector.POST("/reservations/{reservation_id}/renew", named),
  ];
  for (const { data } of steps) {
    assert.equal(data?.status, "ok");
  }
  const { data: row } = await selector.GET("/reservations/{reservation_id}", named);
  assert.equal(row?.state, "decode");
  assert.equal(row.output_blocks, 2);
  const { data: ended } = await selector.DELETE("/reservations/{reservation_id}", named);
  assert.equal(ended?.status, "ok");
  const { error } = await selector.DELETE("/reservations/{reservation_id}", named);
  assert.equal(error?.code, "not_found");
}

// The answer to the first request is lost on its way.
async function testLeaseAfterLostAnswer(base: string): Promise<void> {
  let requests = 0;
  const unreliable = createSelector(base, undefined, async (request) => {
    const answer = await fetch(request);
    if (++requests === 1) {
      throw new TypeError("lost");
    }
    return answer;
  });
  const endpoint = await withLease(unreliable, { ...SCOPE, token_ids: TOKENS }, async (lease) => {
    assert.equal(await countActiveRequests(), 1);
    lease.tokens(3 * BLOCK_SIZE - 1);
    lease.tokens(2);
    await waitUntil(async () => {
      const path = { reservation_id: lease.reservationId };
      const { data } = await selector.GET("/reservations/{reservation_id}", { params: { path } });
      return data?.state === "decode" && data.output_blocks === 3;
    });
    return lease.selection.endpoint;
  });
  assert.match(endpoint, /^http:\/\/worker-900000[12]:8000$/);
}

// Prefill on one worker, decode on the other.
async function testPair(reservation_id: string): Promise<void> {
  const path = { reservation_id };
  const legs = { prefill: { allowed_worker_ids: [WORKERS[0]!] }, decode: { allowed_worker_ids: [WORKERS[1]!] } };
  const { data: pair } = await selector.POST("/select_pair_and_reserve", {
    body: { ...SCOPE, ...legs, reservation_id, token_ids: TOKENS, local: "never" },
  });
  assert.equal(pair?.path, "remote");
  assert.deepEqual(pair.legs.map((leg) => leg.worker_id), WORKERS);
  assert.equal(pair.move_tokens, TOKENS.length);
  assert.deepEqual(pair.handoff?.missing, ["kind"]);
  assert.equal(await countActiveRequests(), 2);
  await selector.POST("/reservations/{reservation_id}/prefill_complete", { params: { path } });
  const { data: done } = await selector.POST("/reservations/{reservation_id}/first_token", { params: { path } });
  assert.equal(done?.status, "ok");
  const moved = await selector.POST("/reservations/{reservation_id}/move", { params: { path }, body: { leg: "decode" } });
  assert.equal(moved.error?.code, "no_eligible_rank");
  const { data: listed } = await selector.GET("/decisions", { params: { query: { ...SCOPE, limit: 1 } } });
  assert.equal(listed?.decisions[0]?.pair?.prefill_worker_id, WORKERS[0]);
  await selector.DELETE("/reservations/{reservation_id}", { params: { path } });
  await waitUntil(async () => (await countActiveRequests()) === 0);
}

async function testRefusals(): Promise<void> {
  const unknown = { model_name: "typescript-unknown", token_ids: TOKENS };
  await assert.rejects(
    withLease(selector, unknown, async () => assert.fail("no worker has the model")),
    (error) =>
      error instanceof RefusalError && error.status === 503 && error.code === "no_schedulable_workers",
  );
  const wrong = await selector.POST("/select", { body: { ...SCOPE, token_ids: [-1] } });
  assert.equal(wrong.response.status, 422);
  assert(wrong.error && "code" in wrong.error);
  assert.equal(wrong.error.code, "invalid_body");
}

async function countActiveRequests(): Promise<number> {
  const { data } = await selector.GET("/loads", { params: { query: SCOPE } });
  assert(Array.isArray(data)); // the form without `view=compact`
  const loads = data.flatMap((partition) => partition.loads);
  assert.deepEqual(loads.map((load) => load.worker_id), WORKERS);
  return loads.reduce((sum, load) => sum + load.active_requests, 0);
}

async function waitUntil(predicate: () => Promise<boolean>): Promise<void> {
  for (let attempt = 0; attempt < 600; attempt++) {
    if (await predicate()) {
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.fail("the condition does not hold after 30 s");
}

// Never called: the compiler must refuse these statements.
export async function doesNotCompile(): Promise<void> {
  // @ts-expect-error a field that does not exist; the compiler checks only typed bodies
  const body: LeaseRequest = { modell_name: "m" };
  // @ts-expect-error a field of another type
  await selector.POST("/select_and_reserve", { body: { ...body, token_ids: "text" } });
  // @ts-expect-error a worker without an id
  await selector.POST("/workers", { body: { endpoint: "http://w:8000" } });
  // @ts-expect-error a path that does not exist
  await selector.GET("/selected");
  // @ts-expect-error an outcome that does not exist
  const query: NonNullable<Free["query"]> = { outcome: "maybe" };
  const path = { reservation_id: "r" };
  await selector.DELETE("/reservations/{reservation_id}", { params: { path, query } });
}

try {
  for (const worker_id of WORKERS) {
    await register(worker_id);
  }
  const reservation_id = `smoke/${process.pid}`;
  await testIdempotentBooking(reservation_id);
  await testReservationLife(reservation_id);
  await testBothDialects(`${reservation_id}-1.6`);
  await testPair(`${reservation_id}-pair`);
  await testLeaseAfterLostAnswer(url);
  await testRefusals();
  assert.equal(await countActiveRequests(), 0);
} finally {
  for (const worker_id of WORKERS) {
    await selector.DELETE("/workers/{worker_id}", { params: { path: { worker_id } } });
  }
}
console.log("ok");
