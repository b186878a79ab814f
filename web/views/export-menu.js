// Saves a turn as a file. The file is fetched by script, since a link cannot send the key.
import { ApiFailure, fetchText } from "../lib/api.js";
import { html } from "../lib/html.js";
import { EXPORT_FORMS, readJson, readMissing } from "../lib/parts.js";
import { Failure } from "../ui/frame.js";
import { toFailure } from "../ui/hooks.js";
import { useState } from "../vendor/hooks.js";

/** @typedef {import("../lib/parts.js").ExportForm} ExportForm */

/** Time after which the browser has taken a file, in milliseconds. */
const TAKEN_MS = 10_000;

/** @param {{id: string}} props */
export function ExportMenu({ id }) {
  const [saved, setSaved] = useState("");
  const [failure, setFailure] = useState(/** @type {{message: string} | null} */ (null));
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
  const path = `v1/inspect/turns/${encodeURIComponent(id)}/export/${form}`;
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
