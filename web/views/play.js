// A request to try, change and send to several models at once; a new one, or the one of a recorded turn up to any item.
import { turnAddress, viewAddress } from "../lib/addresses.js";
import { cancelTurn, fetchJson, fetchText, turnPath } from "../lib/api.js";
import { html, takeValue } from "../lib/html.js";
import { buildRequest, continueRequest, EFFORTS, listCalls, listInput, readDraft, readItem } from "../lib/play.js";
import { formatCount, listItems, readJson, readMissing } from "../lib/turns.js";
import { showHidden } from "../lib/visible.js";
import { Failure } from "../ui/frame.js";
import { useLoaded } from "../ui/hooks.js";
import { ShortText } from "../ui/text.js";
import { useEffect, useMemo, useState } from "../vendor/hooks.js";
import { Output, readReply } from "./prompt-box.js";
import { useTurnLog } from "./turn-log.js";

/** Models that may answer at once. */
const MAX_MODELS = 3;
const TOOL = {
  type: "function",
  name: "get_weather",
  parameters: { type: "object", properties: { city: { type: "string" } } },
};
/** @type {[string, Json][]} */
const FORMATS = [
  ["text", { type: "text" }],
  ["JSON object", { type: "json_object" }],
  [
    "JSON schema",
    {
      type: "json_schema",
      name: "answer",
      strict: true,
      schema: {
        type: "object",
        properties: { answer: { type: "string" } },
        required: ["answer"],
        additionalProperties: false,
      },
    },
  ],
];
const NEW = { input: [{ role: "user", content: "" }] };

export function Play() {
  const id = new URLSearchParams(location.search).get("fork") ?? "";
  return html`<h1>Play</h1>${id === "" ? html`<${Editor} request=${NEW} />` : html`<${Fork} id=${id} />`}`;
}

/** The request of a recorded turn, with the items of the turn up to the chosen one. @param {{id: string}} props */
function Fork({ id }) {
  const path = turnPath(id);
  const { value, failure } = useLoaded(
    async (signal) => ({
      record: await fetchJson(path, signal),
      text: (await fetchText(`${path}/request`, signal)).text,
    }),
    [id],
  );
  const log = useTurnLog(id, false);
  const fields = new URLSearchParams(location.search);
  const [chosen, setItem] = useState(fields.get("item") ?? "");
  const [output, setOutput] = useState(fields.get("output"));
  if (failure !== null) return html`<${Failure} failure=${failure} />`;
  if (value === null || log.reading) return html`<p>Reading …</p>`;
  const request = readJson(value.text)?.value;
  const missing =
    readMissing(request) ?? (value.record.api === "responses" ? "" : "Only turns of the Responses API can be forked.");
  if (missing !== "" || typeof request !== "object" || request === null)
    return html`<p><${ShortText} value=${missing} limit=${300} /></p>`;
  const { input } = /** @type {Json} */ (request);
  const items = [...listInput(input), ...listItems(log.fold.asOf(log.count - 1))];
  const item = chosen === "" && output !== null ? String(listInput(input).length + Number(output)) : chosen;
  const forked = item === "" ? request : { ...request, input: items.slice(0, Number(item) + 1) };
  const choose = (/** @type {string} */ n) => {
    history.replaceState(null, "", viewAddress("play", n === "" ? { fork: id } : { fork: id, item: n }));
    setItem(n);
    setOutput(null);
  };
  return html`<p>The request of <${ShortText} value=${id} />.${value.text.includes('"REDACTED"') && " Its secrets were removed where it says REDACTED."}</p>
    <form class="filters"><label>up to item <select value=${item} onChange=${takeValue(choose)}>
      <option value="">the whole request</option>
      ${items.map((each, n) => html`<option value=${String(n)}>${showHidden(`${n}: ${readItem(each).label} ${readItem(each).text}`.slice(0, 60))}</option>`)}
    </select></label></form>
    <${Editor} key=${item} request=${forked} />`;
}

/** @param {{request: Json}} props */
function Editor({ request }) {
  const [draft, setDraft] = useState(() => readDraft(request));
  const [chosen, setChosen] = useState(
    /** @type {string[]} */ (typeof request["model"] === "string" ? [request["model"]] : []),
  );
  const [sent, setSent] = useState({ round: 0, bodies: /** @type {Json[]} */ ([]) });
  const [failure, setFailure] = useState(/** @type {Fault} */ (null));
  const { value, failure: noModels } = useLoaded((signal) => fetchJson("v1/models", signal), []);
  /** @type {string[]} */
  const served = Array.isArray(value?.data) ? value.data.map((/** @type {Json} */ model) => String(model["id"])) : [];
  const models = chosen.length > 0 ? chosen : served.slice(0, 1);
  const toggle = (/** @type {string} */ name) =>
    setChosen(models.includes(name) ? models.filter((each) => each !== name) : [...models, name].slice(-MAX_MODELS));
  const set = (/** @type {keyof Draft} */ name) => (/** @type {unknown} */ value) =>
    setDraft({ ...draft, [name]: value });
  const setItems = set("items");
  const send = () => {
    try {
      const body = buildRequest(draft);
      setSent({ round: sent.round + 1, bodies: models.map((model) => ({ ...body, model })) });
      setFailure(null);
    } catch (error) {
      setFailure({ message: /** @type {Error} */ (error).message });
    }
  };
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    send();
  };
  return html`<div class="play"><form class="play" onSubmit=${(/** @type {Event} */ event) => {
    event.preventDefault();
    send();
  }} onKeyDown=${onKeyDown}>
      <fieldset class="switches"><legend>Models, at most ${MAX_MODELS}</legend>${[
        ...new Set([...served, ...models]),
      ].map(
        (name) =>
          html`<label><input type="checkbox" checked=${models.includes(name)} onChange=${() => toggle(name)} /> <${ShortText} value=${name} /></label>`,
      )}</fieldset>
      <${Field} label="Instructions" value=${draft.instructions} onChange=${set("instructions")} />
      ${draft.items.map(
        (item, i) => html`<${Field} label=${`${i}: ${item.label}`} value=${item.text}
          onChange=${(/** @type {string} */ text) => setItems(draft.items.map((each) => (each === item ? { ...item, text } : each)))}>
          <button type="button" aria-label=${`Remove item ${i}`} onClick=${() => setItems(draft.items.filter((each) => each !== item))}>✕</button><//>`,
      )}
      <p class="switches">Add ${["user", "assistant", "developer"].map(
        (role) =>
          html`<button type="button" onClick=${() => setItems([...draft.items, readItem({ role, content: "" })])}>${role}</button>`,
      )}<button type="button" onClick=${() => setItems([...draft.items, readItem({})])}>item as JSON</button></p>
      <label>Reasoning effort <select value=${draft.effort} onChange=${takeValue(set("effort"))}>
        <option value="">not set</option>${EFFORTS.map((effort) => html`<option value=${effort}>${effort}</option>`)}</select></label>
      <${Field} label="Tools as JSON" value=${draft.tools} onChange=${set("tools")}>
        <button type="button" onClick=${() => set("tools")(JSON.stringify([TOOL], null, 2))}>example</button><//>
      <${Field} label="Format as JSON" value=${draft.format} onChange=${set("format")}>${FORMATS.map(
        ([name, format]) =>
          html`<button type="button" onClick=${() => set("format")(JSON.stringify(format, null, 2))}>${name}</button>`,
      )}<//>
      <${Field} label="Other fields as JSON" value=${draft.rest} onChange=${set("rest")} />
      <p class="switches"><button type="submit" disabled=${models.length === 0}>Send</button> <span class="faint">or Ctrl-Enter</span></p>
    </form>
    <div><${Failure} failure=${failure ?? noModels} />
    <div class="frames" key=${sent.round}>${sent.bodies.map((body) => html`<${Column} body=${body} onUse=${(/** @type {unknown[]} */ input) => setItems(input.map(readItem))} />`)}</div></div></div>`;
}

/** @param {{label: string, value: string, onChange: (text: string) => void, children?: unknown}} props */
function Field({ label, value, onChange, children }) {
  const rows = Math.min(12, value.split("\n").length + 1);
  return html`<div class="field"><label class="grow"><${ShortText} value=${label} />
    <textarea rows=${rows} value=${value} spellcheck=${false} onInput=${takeValue(onChange)}></textarea></label>${children}</div>`;
}

/** @typedef {(input: unknown[]) => void} OnUse */

/** @param {{body: Json, onUse: OnUse}} props */
function Column({ body, onUse }) {
  const [bodies, setBodies] = useState([body]);
  return html`<div class="column">${bodies.map(
    (each, i) =>
      html`<${Round} key=${i} title=${i === 0 ? body["model"] : `${body["model"]}, reply ${i + 1}`} body=${each} onUse=${onUse} isLast=${i === bodies.length - 1} onSend=${(/** @type {Json} */ next) => setBodies([...bodies, next])} />`,
  )}</div>`;
}

/** @param {{title: string, body: Json, isLast: boolean, onSend: (body: Json) => void, onUse: OnUse}} props */
function Round({ title, body, isLast, onSend, onUse }) {
  const [reply, setReply] = useState(/** @type {Reply} */ ({ response: null, running: true, failure: null }));
  const [seconds, setSeconds] = useState(0);
  const abort = useMemo(() => new AbortController(), []);
  useEffect(() => {
    const began = performance.now();
    readReply(body, abort.signal, (next) => {
      setReply(next);
      setSeconds((performance.now() - began) / 1000);
    });
    return () => abort.abort();
  }, []);
  const { response, running, failure } = reply;
  const items = listItems(response);
  const calls = running ? [] : listCalls(items);
  const address = turnAddress(response?.["id"]);
  /** A turn in the background runs on when its reader has left. */
  const stop = () => {
    abort.abort();
    if (body["background"] === true && address !== null) cancelTurn(response?.["id"]).catch(() => {});
  };
  /** @param {SubmitEvent} event */
  const answer = (event) => {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.currentTarget));
    onSend(continueRequest(body, items, form.getAll("answer").map(String)));
  };
  return html`<${Output} title=${title} response=${response ?? {}} running=${running} />
    <${Failure} failure=${failure} />
    <p class="switches"><span class="faint">${describeSpeed(response?.["usage"]?.["output_tokens"], seconds)}</span>
      <button type="button" disabled=${!running} onClick=${stop}>Stop</button>
      ${!running && address !== null && html`<a href=${address}>Open this turn</a>`}
      ${!running && items.length > 0 && html`<button type="button" onClick=${() => onUse(continueRequest(body, items, [])["input"])}>Use as input</button>`}</p>
    ${
      isLast &&
      calls.length > 0 &&
      html`<form class="prompt" onSubmit=${answer}>${calls.map(
        (
          call,
        ) => html`<label class="grow"><span>Answer to <${ShortText} value=${call["name"]} /> <${ShortText} value=${call["arguments"] ?? call["input"]} /></span>
          <textarea name="answer" rows="2"></textarea></label>`,
      )}<button type="submit">Send the answers</button></form>`
    }`;
}

/** @type {(tokens: unknown, seconds: number) => string} */
function describeSpeed(tokens, seconds) {
  const known = typeof tokens === "number" && seconds > 0;
  return `${seconds.toFixed(1)} s${known ? ` · ${formatCount(tokens)} tokens · ${Math.round(tokens / seconds)} tokens a second` : ""}`;
}
