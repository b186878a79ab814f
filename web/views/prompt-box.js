// A field for one prompt, and the streamed reply to it.
import { isAbort, postForEvents } from "../lib/api.js";
import { EventFold } from "../lib/fold.js";
import { html, takeValue } from "../lib/html.js";
import { itemText, listItems } from "../lib/turns.js";
import { showHidden } from "../lib/visible.js";
import { Failure } from "../ui/frame.js";
import { toFailure } from "../ui/hooks.js";
import { ShortText, Text } from "../ui/text.js";
import { useEffect, useRef, useState } from "../vendor/hooks.js";

/** Time between two drawings of a reply that streams, in milliseconds. */
const DRAW_MS = 50;
/** Least time between two announcements, in milliseconds: each piece of a text would interrupt the one before. */
const ANNOUNCE_MS = 2000;

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
      <label>Model <select value=${model} onChange=${takeValue(onModel)}>${models.map(
        ({ id }) => html`<option value=${id}>${showHidden(id)}</option>`,
      )}</select></label>
      <label class="grow">Prompt <textarea name="prompt" rows="2" placeholder="Say something …" onKeyDown=${sendOnEnter}></textarea></label>
      <button type="submit">Send</button>
      <button type="button" disabled=${!reply.running} onClick=${() => abort.current?.abort()}>Stop</button>
    </form>
    <${Failure} failure=${reply.failure} />
    ${reply.response !== null && html`<${Output} title="Reply" response=${reply.response} running=${reply.running} />`}`;
}

/**
 * Posts a request and reports the response as it grows.
 * @param {Record<string, unknown>} body
 * @param {AbortSignal} signal
 * @param {(reply: Reply) => void} report
 */
export async function readReply(body, signal, report) {
  const fold = new EventFold();
  const current = () => fold.asOf(fold.events.length - 1);
  let timer = 0;
  const draw = () => {
    timer = 0;
    report({ response: current(), running: true, failure: null });
  };
  draw();
  /** @type {Fault} */
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

/** @param {{title: string, response: Record<string, any>, running: boolean}} props */
export function Output({ title, response, running }) {
  const items = listItems(response);
  return html`<section class="output" aria-label=${title}>
    <h2><${ShortText} value=${title} /> <small>${running ? "…" : html`<${ShortText} value=${response["status"]} />`}</small></h2>
    ${items.map((item) => html`<div class="item"><h3><${ShortText} value=${item["type"]} /></h3><p><${Text} value=${itemText(item)} /></p></div>`)}
    ${response["error"] && html`<${Failure} failure=${{ message: String(response["error"]["message"]) }} />`}
    <${Announcer} text=${items.map(itemText).join("\n")} running=${running} />
  </section>`;
}

/** Tells screen readers what a text has gained. @param {{text: string, running: boolean}} props */
function Announcer({ text, running }) {
  const [message, setMessage] = useState("");
  const latest = useRef(text);
  const announced = useRef(0);
  latest.current = text;
  useEffect(() => {
    const announce = () => {
      if (latest.current.length < announced.current) announced.current = 0;
      if (latest.current.length > announced.current) setMessage(latest.current.slice(announced.current));
      announced.current = latest.current.length;
    };
    if (!running) return announce();
    const timer = setInterval(announce, ANNOUNCE_MS);
    return () => clearInterval(timer);
  }, [running]);
  return html`<div class="unseen" role="status">${message}</div>`;
}
