// HTTP calls to the service, with the API key if there is one.

const KEY = "select_service.key";
// The lookarounds exclude the digits of a fraction: 1.4455593000001876 is not a long id.
const LONG_NUMBER_OR_TEXT = /"(?:[^"\\]|\\.)*"|(?<![\d.])-?\d{16,}(?![\d.eE])/g;

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

// Parses JSON with long integers as strings: ids have up to 64 bits, JavaScript numbers 53.
export function parse(text) {
  const kept = (found) => (found[0] === '"' ? found : `"${found}"`);
  return JSON.parse(text.replace(LONG_NUMBER_OR_TEXT, kept));
}

export const keepKey = (key) => sessionStorage.setItem(KEY, key);

function headers(more) {
  const key = sessionStorage.getItem(KEY);
  return key ? { ...more, authorization: `Bearer ${key}` } : more;
}

// Returns a successful response with the body unread.  Throws Refused.
export async function open(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: headers(options.headers ?? {}) });
  if (answer.ok) return answer;
  let text = `${answer.status} ${answer.statusText}`;
  try {
    const body = parse(await answer.text());
    text = body.error ?? body.message ?? text;
  } catch {
    // not our JSON: probably a response of a proxy
  }
  throw new Refused(answer.status, text);
}

export async function get(path) {
  return parse(await (await open(path)).text());
}

// body: JSON as text
export async function post(path, body) {
  const options = { method: "POST", body, headers: { "content-type": "application/json" } };
  return parse(await (await open(path, options)).text());
}
