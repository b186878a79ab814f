// What a turn was asked: the body of its request as it was received, without secrets, and what the model read, token by
// token: control tokens, what a cache held, and what history restored.
import { fetchLines, fetchText, turnPath } from "../lib/api.js";
import { html } from "../lib/html.js";
import { readJson, readMissing } from "../lib/turns.js";
import { Failure } from "../ui/frame.js";
import { useLoaded } from "../ui/hooks.js";
import { JsonTree } from "../ui/json-tree.js";
import { ShortText, Text } from "../ui/text.js";
import { useMemo, useState } from "../vendor/hooks.js";

/** Tokens that are read, and drawn, at once. */
const PAGE_SIZE = 2000;

/** @param {{id: string}} props */
export function Prompt({ id }) {
  const [limit, setLimit] = useState(PAGE_SIZE);
  const [boundaries, setBoundaries] = useState(true);
  const [ids, setIds] = useState(false);
  // One token more than is shown tells whether there are more.
  const { value, failure } = useLoaded((signal) => readRuns(id, limit + 1, signal), [id, limit]);
  if (value === null) return html`<${Failure} failure=${failure} />`;
  if (value.missing !== "") return html`<p><${ShortText} value=${value.missing} limit=${300} /></p>`;
  const count = value.runs.reduce((sum, run) => sum + run["ids"].length, 0);
  const runs = count > limit ? dropLastToken(value.runs) : value.runs;
  return html`<section aria-label="Prompt">
    <p class="switches">
      <label><input type="checkbox" checked=${boundaries} onChange=${() => setBoundaries(!boundaries)} /> boundaries</label>
      <label><input type="checkbox" checked=${ids} onChange=${() => setIds(!ids)} /> ids</label>
      <span>Marks: <span class="run cached">held by the cache</span>, <span class="run restored">restored by history</span>, ⟦control token⟧</span>
    </p>
    <div class=${`prompt-tokens mono${boundaries ? " boundaries" : ""}`} tabindex="0" role="region" aria-label="Tokens">
      ${runs.map((run, i) => html`<${Run} run=${run} before=${runs[i - 1]} ids=${ids} />`)}</div>
    ${count > limit && html`<button type="button" onClick=${() => setLimit(limit + PAGE_SIZE)}>More tokens</button>`}
    <p id="tokens-shown">${Math.min(count, limit).toLocaleString("en")} tokens${count > limit ? " so far" : ""}</p>
  </section>`;
}

/** @type {(runs: Json[]) => Json[]} */
function dropLastToken(runs) {
  return runs.map((run, i) => (i < runs.length - 1 ? run : { ...run, ids: run["ids"].slice(0, -1) }));
}

/** @type {(id: string, limit: number, signal: AbortSignal) => Promise<{runs: Json[], missing: string}>} */
export async function readRuns(id, limit, signal) {
  /** @type {Json[]} */
  const runs = [];
  for await (const line of fetchLines(turnPath(id, `/prompt?limit=${limit}`), signal)) {
    if (line["missing"] !== undefined) return { runs: [], missing: String(line["missing"]) };
    if (Array.isArray(line["ids"])) runs.push(line);
  }
  return { runs, missing: runs.length === 0 ? "This turn has no prompt." : "" };
}

/** @param {{run: Json, before: Json | undefined, ids: boolean}} props */
function Run({ run, before, ids }) {
  const isNewRound = before !== undefined && before["round"] !== run["round"];
  const kind = describeKind(run);
  const texts = Array.isArray(run["texts"]) ? run["texts"] : run["ids"].map(() => "");
  return html`${isNewRound && html`<h2>Round <${ShortText} value=${run["round"]} /></h2>`}<span
    class=${`run ${run["cached"] === true ? "cached" : ""} ${run["restored"] === true ? "restored" : ""}`}
    >${kind !== describeKind(before) && html`<span class="unseen"> ${kind}: </span>`}${run["ids"].map(
      (/** @type {unknown} */ id, /** @type {number} */ i) =>
        html`<${Token} id=${id} text=${texts[i]} control=${run["control"] === true} showsId=${ids} />`,
    )}</span>`;
}

/** Returns the marks of a run in words. @type {(run: Json | undefined) => string} */
function describeKind(run) {
  const marks = ["cached", "restored", "control"].filter((name) => run?.[name] === true);
  return marks.length === 0 ? "new text" : marks.join(", ");
}

/** @param {{id: unknown, text: unknown, control: boolean, showsId: boolean}} props */
function Token({ id, text, control, showsId }) {
  const shown = typeof text === "string" ? text.replaceAll("\n", "⏎\n") : "";
  return html`<span class="token">${control && "⟦"}<${Text} value=${shown} />${control && "⟧"}${
    (showsId || shown === "") && html`<sub><${ShortText} value=${id} /></sub>`
  }</span>`;
}

/** @param {{id: string}} props */
export function RequestBody({ id }) {
  const [asText, setAsText] = useState(false);
  const { value, failure } = useLoaded(
    async (signal) => (await fetchText(turnPath(id, "/request"), signal)).text,
    [id],
  );
  const parsed = useMemo(() => readJson(value ?? ""), [value]);
  if (value === null) return html`<${Failure} failure=${failure} />`;
  const missing = readMissing(parsed?.value);
  if (missing !== null) return html`<p><${ShortText} value=${missing} limit=${300} /></p>`;
  return html`<section aria-label="Request">
    <p class="switches">
      <label><input type="checkbox" checked=${asText || parsed === null} disabled=${parsed === null}
        onChange=${() => setAsText(!asText)} /> as text</label>
      ${parsed === null && html`<span>The body is not JSON.</span>`}
      <span>${value.length.toLocaleString("en")} characters</span>
    </p>
    <div class="request mono" tabindex="0" role="region" aria-label="Body of the request">
      ${asText || parsed === null ? html`<${Text} value=${value} />` : html`<${JsonTree} value=${parsed.value} openLevels=${1} />`}
    </div>
  </section>`;
}
