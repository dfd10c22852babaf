// Calls of the service, with the key if there is one.

const KEY = "select_service.key";
// What stands before and behind keeps the digits of a fraction out: 1.4455593000001876 is no long id.
const LONG_NUMBER_OR_TEXT = /"(?:[^"\\]|\\.)*"|(?<![\d.])-?\d{16,}(?![\d.eE])/g;

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

// Ids may use 64 bits, of which a JavaScript number keeps 53: long ones become texts.
export function parse(text) {
  const kept = (found) => (found[0] === '"' ? found : `"${found}"`);
  return JSON.parse(text.replace(LONG_NUMBER_OR_TEXT, kept));
}

export const keepKey = (key) => sessionStorage.setItem(KEY, key);

function headers(more) {
  const key = sessionStorage.getItem(KEY);
  return key ? { ...more, authorization: `Bearer ${key}` } : more;
}

// A good answer, its body unread.  Throws Refused.
export async function open(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: headers(options.headers ?? {}) });
  if (answer.ok) return answer;
  let text = `${answer.status} ${answer.statusText}`;
  try {
    const body = parse(await answer.text());
    text = body.error ?? body.message ?? text;
  } catch {
    // a proxy answered, in words of its own
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
