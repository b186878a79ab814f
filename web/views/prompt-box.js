// A field for one prompt, and the streamed reply to it.
import { isAbort, postForEvents } from "../lib/api.js";
import { EventFold } from "../lib/fold.js";
import { html } from "../lib/html.js";
import { itemText, listItems } from "../lib/items.js";
import { showHidden } from "../lib/visible.js";
import { Announcer } from "../ui/announcer.js";
import { Failure } from "../ui/frame.js";
import { toFailure } from "../ui/hooks.js";
import { ShortText, Text } from "../ui/text.js";
import { useEffect, useRef, useState } from "../vendor/hooks.js";

/** Time between two drawings of a reply that streams, in milliseconds. */
const DRAW_MS = 50;

/**
 * @typedef {object} Reply
 * @property {Record<string, any> | null} response
 * @property {boolean} running
 * @property {{message: string} | null} failure
 */

/** @param {{models: {id: string}[], model: string, onModel: (id: string) => void}} props */
export function PromptBox({ models, model, onModel }) {
  const [reply, setReply] = useState(/** @type {Reply} */ ({ response: null, running: false, failure: null }));
  const abort = useRef(/** @type {AbortController | null} */ (null));
  useEffect(() => () => abort.current?.abort(), []);

  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    const field = /** @type {HTMLFormElement} */ (event.currentTarget).elements.namedItem("prompt");
    if (!(field instanceof HTMLTextAreaElement) || field.value === "") return;
    abort.current?.abort();
    const controller = new AbortController();
    abort.current = controller;
    await readReply({ model, input: field.value, stream: true }, controller.signal, setReply);
  };

  /** @param {KeyboardEvent} event */
  const sendOnEnter = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    /** @type {HTMLTextAreaElement} */ (event.currentTarget).form?.requestSubmit();
  };

  return html`<form class="prompt" onSubmit=${submit}>
      <label>Model <select value=${model} onChange=${(/** @type {any} */ event) => onModel(event.currentTarget.value)}>${models.map(
        ({ id }) => html`<option value=${id}>${showHidden(id)}</option>`,
      )}</select></label>
      <label class="grow">Prompt <textarea name="prompt" rows="2" placeholder="Say something …" onKeyDown=${sendOnEnter}></textarea></label>
      <button type="submit">Send</button>
      <button type="button" disabled=${!reply.running} onClick=${() => abort.current?.abort()}>Stop</button>
    </form>
    <${Failure} failure=${reply.failure} />
    ${reply.response !== null && html`<${Output} response=${reply.response} running=${reply.running} />`}`;
}

/**
 * Posts a request and reports the response as it grows.
 * @param {Record<string, unknown>} body
 * @param {AbortSignal} signal
 * @param {(reply: Reply) => void} report
 */
async function readReply(body, signal, report) {
  const fold = new EventFold();
  const current = () => fold.asOf(fold.events.length - 1);
  let timer = 0;
  const draw = () => {
    timer = 0;
    report({ response: current(), running: true, failure: null });
  };
  draw();
  /** @type {{message: string} | null} */
  let failure = null;
  try {
    for await (const event of postForEvents("v1/responses", body, signal)) {
      fold.append(event);
      timer ||= setTimeout(draw, DRAW_MS);
    }
  } catch (error) {
    failure = isAbort(error) ? { message: "Stopped." } : toFailure(error);
  }
  clearTimeout(timer);
  report({ response: current(), running: false, failure });
}

/** @param {{response: Record<string, any>, running: boolean}} props */
function Output({ response, running }) {
  const items = listItems(response);
  return html`<section class="output" aria-labelledby="reply">
    <h2 id="reply">Reply <small>${running ? "…" : html`<${ShortText} value=${response["status"]} />`}</small></h2>
    ${items.map((item) => html`<div class="item"><h3><${ShortText} value=${item["type"]} /></h3><p><${Text} value=${itemText(item)} /></p></div>`)}
    ${response["error"] && html`<${Failure} failure=${{ message: String(response["error"]["message"]) }} />`}
    <${Announcer} text=${items.map(itemText).join("\n")} running=${running} />
  </section>`;
}
