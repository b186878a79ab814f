// The body of the request as it was received, without secrets.
import { fetchText, turnPath } from "../lib/api.js";
import { html } from "../lib/html.js";
import { readJson, readMissing } from "../lib/turns.js";
import { Failure } from "../ui/frame.js";
import { useLoaded } from "../ui/hooks.js";
import { JsonTree } from "../ui/json-tree.js";
import { ShortText, Text } from "../ui/text.js";
import { useMemo, useState } from "../vendor/hooks.js";

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
