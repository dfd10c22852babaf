// Form "Where would this prompt go?": sends a dry run to /explain, which books nothing.

import { post } from "./api.js";
import { candidatesOf } from "./candidates.js";
import { el } from "./dom.js";

const JSON_LIST = /^\[?[\d\s,]*\]?$/;

// Returns the request body; scope: {model_name, tenant_id}.  Throws Error.
function bodyOf(text, scope) {
  const given = text.trim();
  if (given.startsWith("{")) return given;
  if (!given || !JSON_LIST.test(given)) throw new Error("Give token ids, such as 1 2 3, or a JSON object.");
  const tokens = given.match(/\d+/g) ?? [];
  return `{${JSON.stringify(scope).slice(1, -1)},"token_ids":[${tokens.map((token) => BigInt(token)).join(",")}]}`;
}

export class Ask {
  #form;
  #error;
  #answer;
  #scopes = "";

  constructor(form, error, answer) {
    [this.#form, this.#error, this.#answer] = [form, error, answer];
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#ask();
    });
  }

  // Fills the selection with the models and tenants of the frame.
  offer(partitions) {
    const scopes = partitions.map(({ ranks }) => [ranks.model_name, ranks.tenant_id]);
    const text = JSON.stringify(scopes);
    if (text === this.#scopes) return;
    this.#scopes = text;
    const select = this.#form.elements.scope;
    const before = select.value;
    select.replaceChildren(...scopes.map((scope) =>
      el("option", { value: JSON.stringify(scope) }, scope.join(" · "))));
    if (before) select.value = before;
  }

  async #ask() {
    this.#error.textContent = "";
    try {
      const [model_name, tenant_id] = JSON.parse(this.#form.elements.scope.value || "[]");
      const body = bodyOf(this.#form.elements.prompt.value, { model_name, tenant_id });
      this.#answer.replaceChildren(candidatesOf(await post("explain", body)));
    } catch (error) {
      this.#answer.replaceChildren();
      this.#error.textContent = error.message;
    }
  }
}
