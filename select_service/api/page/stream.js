// One stream of frames, begun again when it breaks, and given up while nobody looks at the page.
// fetch and not EventSource, which cannot send a key.

import { open, parse } from "./api.js";

const PATIENCE_MS = 15_000;
const PAUSE_MS_MAX = 15_000;

// A frame came, and this page could make nothing of it.
class NotShown extends Error {}

// Calls onHistory(history) once for each stream, onFrame(frame), onState(state, text) with "live", "waiting" or "stopped", and needKey(text),
// whose promise is kept once there is one.
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
      onState("waiting", "the stream ended; trying again");
    } catch (error) {
      if (error.status === 401) {
        onState("stopped", "a key is needed");
        await needKey(error.message);
        continue;
      }
      onState(error.status === 403 ? "stopped" : "waiting", told(error, abort));
    } finally {
      document.removeEventListener("visibilitychange", hide);
    }
    await new Promise((done) => setTimeout(done, pause_ms));
    pause_ms = Math.min(2 * pause_ms, PAUSE_MS_MAX);
  }
}

function told(error, abort) {
  if (abort.signal.reason === "hidden") return "paused";
  if (error.status) return error.message;
  if (error instanceof NotShown) return `what came cannot be shown: ${error.message}; trying again`;
  return "the service does not answer; trying again";
}

// onEvent: by the name of the event, what takes its data
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
        const interval_s = shown(event, onEvent);
        silent = setTimeout(() => abort.abort("silent"), PATIENCE_MS + 3000 * interval_s);
      }
    }
  } finally {
    clearTimeout(silent);
    abort.abort("over");
  }
}

// After how many seconds the next event is to come.
function shown(event, onEvent) {
  try {
    const name = /^event: (.*)$/m.exec(event)?.[1];
    const body = parse(event.slice(event.indexOf("data: ") + 6));
    onEvent[name]?.(body); // an event of a later release is left out
    return body.interval_s ?? 0;
  } catch (error) {
    console.error(error); // a fault of the page, and not of the connection
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
