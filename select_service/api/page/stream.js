// Event stream with automatic reconnection; closed while the page is hidden.
// Uses fetch, because EventSource cannot send an authorization header.

import { open, parse } from "./api.js";

const PATIENCE_MS = 15_000;
const PAUSE_MS_MAX = 15_000;

// A frame arrived that this page cannot display.
class NotShown extends Error {}

// Runs the stream: onHistory(history) once per connection, onFrame(frame), onState(state, text) with
// state "live", "waiting" or "stopped", and needKey(text), which resolves once a key was entered.
export async function watch({ onHistory, onFrame, onState, needKey }) {
  let pause_ms = 500;
  for (;;) {
    await visible();
    const abort = new AbortController();
    const hide = () => document.hidden && abort.abort("hidden");
    document.addEventListener("visibilitychange", hide);
    try {
      const onEvent = {
        history: onHistory,
        fleet: (frame) => {
          pause_ms = 500;
          onState("live", "live");
          onFrame(frame);
        },
      };
      await follow(abort, onEvent);
      onState("waiting", "stream ended; reconnecting");
    } catch (error) {
      if (error.status === 401) {
        onState("stopped", "API key required");
        await needKey(error.message);
        continue;
      }
      onState(error.status === 403 ? "stopped" : "waiting", failureText(error, abort));
    } finally {
      document.removeEventListener("visibilitychange", hide);
    }
    await new Promise((done) => setTimeout(done, pause_ms));
    pause_ms = Math.min(2 * pause_ms, PAUSE_MS_MAX);
  }
}

function failureText(error, abort) {
  if (abort.signal.reason === "hidden") return "paused";
  if (error.status) return error.message;
  if (error instanceof NotShown) return `frame cannot be displayed: ${error.message}; reconnecting`;
  return "service not answering; reconnecting";
}

// onEvent: handler of the data, by event name
async function follow(abort, onEvent) {
  let silent = setTimeout(() => abort.abort("silent"), PATIENCE_MS);
  try {
    const answer = await open("live", { signal: abort.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        clearTimeout(silent);
        const interval_s = dispatch(event, onEvent);
        silent = setTimeout(() => abort.abort("silent"), PATIENCE_MS + 3000 * interval_s);
      }
    }
  } finally {
    clearTimeout(silent);
    abort.abort("over");
  }
}

// Handles an event; returns the seconds until the next event is due.
function dispatch(event, onEvent) {
  try {
    const name = /^event: (.*)$/m.exec(event)?.[1];
    const body = parse(event.slice(event.indexOf("data: ") + 6));
    onEvent[name]?.(body); // ignore unknown events of later releases
    return body.interval_s ?? 0;
  } catch (error) {
    console.error(error); // a bug of the page, not a connection failure
    throw new NotShown(error.message, { cause: error });
  }
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((done) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      done();
    };
    document.addEventListener("visibilitychange", look);
  });
}
