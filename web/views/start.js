// The first view: does the server work, and what goes into a client?
import { API_URL, ROOT_URL, turnAddress } from "../lib/addresses.js";
import { fetchJson } from "../lib/api.js";
import { writeClientLines } from "../lib/client-lines.js";
import { html } from "../lib/html.js";
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

function LastTurns() {
  const { value } = useLoaded((signal) => fetchJson("v1/inspect/turns?limit=5", signal), []);
  /** @type {Record<string, any>[]} */
  const turns = Array.isArray(value?.data) ? value.data : [];
  return (
    turns.length > 0 &&
    html`<section aria-labelledby="last"><h2 id="last">Last turns</h2>
    <ul>${turns.map(
      (turn) => html`<li>
        <a href=${turnAddress(turn["id"])}><${ShortText} value=${turn["id"]} /></a>${" "}
        <${ShortText} value=${turn["ending"]?.["kind"] ?? turn["ending"] ?? turn["status"]} />
      </li>`,
    )}</ul></section>`
  );
}
