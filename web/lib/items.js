// Texts of the items of a response.

/** Returns the text of an item: that of its parts, or what a call says. @type {(item: Record<string, any>) => string} */
export function itemText(item) {
  const parts = [...list(item["content"]), ...list(item["summary"])];
  if (parts.length > 0) return parts.map((part) => part?.["text"] ?? part?.["refusal"] ?? "").join("\n");
  const texts = [item["name"], item["content"], item["arguments"] ?? item["input"] ?? item["output"]];
  return texts.filter((text) => typeof text === "string").join(" ");
}

/** Returns the items of a response. @type {(response: Record<string, any> | null) => Record<string, any>[]} */
export function listItems(response) {
  return list(response?.["output"]).filter((item) => typeof item === "object" && item !== null);
}

/** @type {(value: unknown) => any[]} */
function list(value) {
  return Array.isArray(value) ? value : [];
}
