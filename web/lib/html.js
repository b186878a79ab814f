// Templates of the page. Values become text nodes and properties: a string is never parsed as markup.
import htm from "../vendor/htm.js";
import { h } from "../vendor/preact.js";

/** @type {(strings: TemplateStringsArray, ...values: unknown[]) => import("../vendor/preact.js").VNode} */
export const html = /** @type {any} */ (htm.bind(/** @type {any} */ (h)));

/** Returns a listener that takes the value of its field. @type {(take: (value: string) => void) => (event: any) => void} */
export const takeValue = (take) => (event) => take(event.currentTarget.value);
