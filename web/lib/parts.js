// Parts of a turn: what stands in place of one that was not recorded, and the names of the files that a turn is saved in.

/** Returns the value of a JSON text, or null for another text. @type {(text: string) => {value: unknown} | null} */
export function readJson(text) {
  try {
    return { value: JSON.parse(text) };
  } catch {
    return null;
  }
}

/** Returns why a part is missing; null for a part that is there. @type {(value: unknown) => string | null} */
export function readMissing(value) {
  if (typeof value !== "object" || value === null || Object.keys(value).join() !== "missing") return null;
  const reason = /** @type {{missing: unknown}} */ (value).missing;
  return typeof reason === "string" ? reason : null;
}

/** @typedef {{form: string, label: string, file: (id: string) => string}} ExportForm */

/** @type {readonly ExportForm[]} */
export const EXPORT_FORMS = Object.freeze([
  { form: "script", label: "Script of the scripted engine", file: (id) => `${id}.toml` },
  { form: "cassette", label: "Cassette", file: (id) => `${id}.cassette.toml` },
  { form: "test", label: "Test for pytest", file: (id) => `test_${id}.py` },
  { form: "curl", label: "Request for curl", file: (id) => `${id}.sh` },
  { form: "python", label: "Request for Python", file: (id) => `${id}.py` },
]);
