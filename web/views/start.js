// The first view: does the server work, and what goes into a client?
import { API_URL, ROOT_URL, turnAddress } from "../lib/addresses.js";
import { fetchJson } from "../lib/api.js";
import { writeClientLines } from "../lib/client-lines.js";
import { html } from "../lib/html.js";
import { describeEnding, readTurn } from "../lib/turns.js";
import { CopyButton } from "../ui/copy-button.js";
import { Failure } from "../ui/frame.js";
import { useLoaded } from "../ui/hooks.js";
import { ShortText, Text } from "../ui/text.js";
import { useState } from "../vendor/hooks.js";
import { PromptBox } from "./prompt-box.js";

/** @typedef {{id: string, max_model_len?: number, status?: {value?: string}}} Model */

export function Start() {
  const { value, failure } = useLoaded((signal) => fetchJson("v1/models", signal), []);
  const [chosen, setChosen] = useState("");
  /** @type {Model[]} */
  const models = Array.isArray(value?.data) ? value.data : [];
  const model = chosen || models[0]?.id || "";
  return html`<h1>Start</h1>
    <p class="address">
      Base URL <code id="base-url">${API_URL}</code>
      <${CopyButton} text=${API_URL} of="base-url" label="the base URL" />
    </p>
    <${Failure} failure=${failure} />
    ${models.length > 0 && html`<${ModelTable} models=${models} />`}
    ${models.length > 0 && html`<${PromptBox} models=${models} model=${model} onModel=${setChosen} />`}
    ${model !== "" && html`<${Clients} model=${model} />`}
    <${LastTurns} />`;
}

/** @param {{models: Model[]}} props */
function ModelTable({ models }) {
  return html`<div class="wide"><table>
    <caption>Models</caption>
    <thead><tr><th scope="col">name</th><th scope="col">state</th><th scope="col">context in tokens</th></tr></thead>
    <tbody>${models.map(
      (model) => html`<tr>
        <th scope="row"><${ShortText} value=${model.id} /></th>
        <td><${ShortText} value=${model.status?.value ?? "unknown"} /></td>
        <td class="number">${typeof model.max_model_len === "number" ? model.max_model_len.toLocaleString("en") : "–"}</td>
      </tr>`,
    )}</tbody>
  </table></div>`;
}

/** @param {{model: string}} props */
function Clients({ model }) {
  const clients = writeClientLines({ apiUrl: API_URL, rootUrl: ROOT_URL, model });
  return html`<section aria-labelledby="clients"><h2 id="clients">Connect a client</h2>${clients.map(
    ({ name, text, note }, i) => html`<details>
      <summary>${name}</summary>
      <p>${note} <${CopyButton} text=${text} of=${`client-${i}`} label=${`the lines for ${name}`} /></p>
      <pre id=${`client-${i}`} tabindex="0" aria-label=${`Lines for ${name}`}><${Text} value=${text} /></pre>
    </details>`,
  )}</section>`;
}

/** The list is left out where this tab may not read it: the rest of the view needs no key for that. */
function LastTurns() {
  const options = { asksForKey: false };
  const { value } = useLoaded((signal) => fetchJson("v1/inspect/turns?limit=5", signal, options), []);
  /** @type {Turn[]} */
  const turns = Array.isArray(value?.data) ? value.data.map(readTurn) : [];
  return (
    turns.length > 0 &&
    html`<section aria-labelledby="last"><h2 id="last">Last turns</h2>
    <ul class="last">${turns.map((turn) => {
      const ending = describeEnding(turn);
      const address = turnAddress(turn.id);
      const id = html`<${ShortText} value=${turn.id} limit=${24} />`;
      return html`<li>${address === null ? id : html`<a href=${address}>${id}</a>`}
        <span class=${ending.kind}>${ending.sign} <${ShortText} value=${ending.words} /></span></li>`;
    })}</ul></section>`
  );
}
