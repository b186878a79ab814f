// One turn: how it ended, its times, and its timeline.
import { viewAddress } from "../lib/addresses.js";
import { ApiFailure, fetchJson, fetchText, turnPath } from "../lib/api.js";
import { html } from "../lib/html.js";
import {
  decodeRate,
  describeEnding,
  formatCount,
  formatSeconds,
  listPhases,
  readJson,
  readMissing,
  readTurn,
} from "../lib/turns.js";
import { Failure } from "../ui/frame.js";
import { toFailure, useLoaded } from "../ui/hooks.js";
import { ShortText } from "../ui/text.js";
import { useEffect, useState } from "../vendor/hooks.js";
import { Output } from "./output.js";
import { Prompt, RequestBody } from "./prompt.js";
import { Readings } from "./readings.js";
import { Timeline } from "./timeline.js";
import { useTurnLog } from "./turn-log.js";

/** Parts of the page, by the name that the address has for them. @type {readonly [string, string][]} */
const PARTS = [
  ["timeline", "Timeline"],
  ["prompt", "Prompt"],
  ["output", "Output"],
  ["request", "Request"],
  ["readings", "Readings"],
];

/** @typedef {{form: string, label: string, file: (id: string) => string}} ExportForm */

/** @type {readonly ExportForm[]} */
const EXPORT_FORMS = Object.freeze([
  { form: "script", label: "Script of the scripted engine", file: (id) => `${id}.toml` },
  { form: "cassette", label: "Cassette", file: (id) => `${id}.cassette.toml` },
  { form: "test", label: "Test for pytest", file: (id) => `test_${id}.py` },
  { form: "curl", label: "Request for curl", file: (id) => `${id}.sh` },
  { form: "python", label: "Request for Python", file: (id) => `${id}.py` },
]);

/** Time after which the browser has taken a file, in milliseconds. */
const TAKEN_MS = 10_000;

/** @param {{id: string}} props */
export function Turn({ id }) {
  const view = new URLSearchParams(location.search).get("view");
  const part = PARTS.find(([name]) => name === view)?.[0] ?? "timeline";
  const path = turnPath(id);
  const [follow, setFollow] = useState(/** @type {boolean | null} */ (null));
  const log = useTurnLog(id, follow);
  // Read again when the log has ended: the ending is known then.
  const { value: record, failure } = useLoaded((signal) => fetchJson(path, signal), [id, log.reading]);
  useEffect(() => {
    if (follow === null && (record !== null || failure !== null)) setFollow(record !== null && isRunning(record));
  }, [record, failure]);
  // A long log keeps the checker busy, so its findings come after it; those of a turn that runs come now and at its end.
  const waits = log.reading && follow !== true;
  const { value: found } = useLoaded(
    async (signal) => (waits ? null : await fetchJson(`${path}/findings`, signal)),
    [id, log.reading, waits],
  );
  /** @type {Json[]} */
  const findings = Array.isArray(found?.data) ? found.data : [];
  return html`<h1><${ShortText} value=${id} /></h1>
    <${Failure} failure=${failure ?? log.failure} />
    ${
      record !== null &&
      html`<${TurnSummary} record=${record} findings=${findings.length} />
      <p class="switches"><a href=${viewAddress("play", { fork: id })}>Fork</a> <a href=${viewAddress("compare", { a: id })}>Compare</a></p><${ExportMenu} id=${id} />`
    }
    <${Parts} current=${part} />
    ${part === "prompt" && html`<${Prompt} id=${id} />`}
    ${part === "output" && html`<${Output} log=${log} />`}
    ${part === "request" && html`<${RequestBody} id=${id} />`}
    ${part === "readings" && html`<${Readings} id=${id} reading=${log.reading} />`}
    ${part === "timeline" && log.count > 0 && html`<${Timeline} log=${log} findings=${findings} />`}
    ${part === "timeline" && log.count === 0 && !log.reading && log.failure === null && html`<p>This turn has no events.</p>`}`;
}

/** @param {{current: string}} props */
function Parts({ current }) {
  return html`<nav class="parts" aria-label="Parts of the turn">
    ${PARTS.map(
      ([name, label]) =>
        html`<a href=${name === "timeline" ? location.pathname : `?view=${name}`} aria-current=${current === name ? "page" : null}>${label}</a>`,
    )}
  </nav>`;
}

/** @type {(record: Json) => boolean} */
function isRunning(record) {
  return readTurn(record).cause === "" && ["in_progress", "queued"].includes(String(record["status"]));
}

/** @param {{record: Json, findings: number}} props */
function TurnSummary({ record, findings }) {
  const turn = readTurn(record);
  const ending = describeEnding(turn);
  const phases = listPhases(record["times_ms"]);
  const rate = decodeRate(turn, phases);
  return html`<p class="ending">
      <span class=${ending.kind}>${ending.sign} <${ShortText} value=${ending.words} /></span>
      ${turn.sentence !== "" && html` — <${ShortText} value=${turn.sentence} limit=${300} />`}
      ${turn.detail !== "" && html` (<${ShortText} value=${turn.detail} />)`}
      ${findings > 0 && html` · <strong>! ${findings} ${findings === 1 ? "finding" : "findings"}</strong>`}
    </p>
    ${turn.notes.map((note) => html`<p><strong class="bad">!</strong> <${ShortText} value=${note} limit=${600} /></p>`)}
    <dl class="figures">
      <${Figure} name="model"><${ShortText} value=${turn.model} /><//>
      ${phases.map(([name, seconds]) => html`<${Figure} name=${name}>${formatSeconds(seconds)}<//>`)}
      <${Figure} name="tokens in (cached)">${formatCount(turn.input)} (${formatCount(turn.cached)})<//>
      ${rate !== null && html`<${Figure} name="tokens a second">${rate.toFixed(rate < 10 ? 1 : 0)}<//>`}
      <${Figure} name="tokens out">${formatCount(turn.output)}<//>
    </dl>`;
}

/** @param {{name: string, children?: unknown}} props */
function Figure({ name, children }) {
  return html`<div><dt>${name}</dt><dd>${children}</dd></div>`;
}

/** Saves a turn as a file. It is fetched by script, since a link cannot send the key. @param {{id: string}} props */
function ExportMenu({ id }) {
  const [saved, setSaved] = useState("");
  const [failure, setFailure] = useState(/** @type {Fault} */ (null));
  /** @param {ExportForm} form */
  const save = async ({ form, file }) => {
    setSaved("");
    setFailure(null);
    try {
      saveFile(await fetchExport(id, form), file(id));
      setSaved(`Saved as ${file(id)}.`);
    } catch (error) {
      setFailure(toFailure(error));
    }
  };
  return html`<details class="export"><summary>Export</summary>
    <ul>${EXPORT_FORMS.map((each) => html`<li><button type="button" onClick=${() => save(each)}>${each.label}</button></li>`)}</ul>
    <p role="status">${saved}</p>
    <${Failure} failure=${failure} />
  </details>`;
}

/** Returns the content of a file. Throws an error that says why there is none. @type {(id: string, form: string) => Promise<string>} */
async function fetchExport(id, form) {
  const path = turnPath(id, `/export/${form}`);
  const { text, type } = await fetchText(path, new AbortController().signal);
  const missing = type === "application/json" ? readMissing(readJson(text)?.value) : null;
  if (missing !== null) throw new ApiFailure(200, missing);
  return text;
}

/** @param {string} content @param {string} name */
function saveFile(content, name) {
  const address = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), TAKEN_MS);
}
