// The log of a turn as it is read: all lines that the server has, then those that come while the turn runs.
import { fetchLines, isAbort, turnPath } from "../lib/api.js";
import { EventFold } from "../lib/fold.js";
import { keyVersion } from "../lib/session.js";
import { toFailure, useSignal } from "../ui/hooks.js";
import { useEffect, useState } from "../vendor/hooks.js";

/** The server unpacks the whole log for each page of it. */
const PAGE_SIZE = 25_000;
/** Time between two drawings while lines come, in milliseconds. */
const DRAW_MS = 200;

/**
 * Reads the log of a turn. With `follow`, the last request stays open while the turn runs; it keeps no turn alive.
 * @param {string} id
 * @param {boolean | null} follow Null until it is known; nothing is read before.
 * @returns {TurnLog}
 */
export function useTurnLog(id, follow) {
  const version = useSignal(keyVersion);
  const [log, setLog] = useState(
    /** @type {TurnLog} */ ({ fold: new EventFold(), lines: [], count: 0, reading: true, failure: null }),
  );
  useEffect(() => {
    if (follow === null) return;
    const abort = new AbortController();
    readLog(id, follow, abort.signal, setLog);
    return () => abort.abort();
  }, [id, follow, version]);
  return log;
}

/** @type {(id: string, follow: boolean, signal: AbortSignal, report: (log: TurnLog) => void) => Promise<void>} */
async function readLog(id, follow, signal, report) {
  const fold = new EventFold();
  /** @type {Json[]} */
  const lines = [];
  const draw = (/** @type {boolean} */ reading, /** @type {TurnLog["failure"]} */ failure) =>
    report({ fold, lines, count: lines.length, reading, failure });
  let timer = 0;
  try {
    for (;;) {
      const before = lines.length;
      const query = `after=${before - 1}&limit=${PAGE_SIZE}&follow=${follow}`;
      for await (const line of fetchLines(turnPath(id, `/events?${query}`), signal)) {
        if (line["error"] !== undefined)
          throw new Error(String(line["error"]?.["message"] ?? "the log ends with an error"));
        const { event, ...rest } = line;
        fold.append(typeof event === "object" && event !== null ? event : {});
        lines.push(rest);
        timer ||= setTimeout(() => {
          timer = 0;
          draw(true, null);
        }, DRAW_MS);
      }
      if (lines.length - before < PAGE_SIZE) break;
    }
    clearTimeout(timer);
    draw(false, null);
  } catch (error) {
    clearTimeout(timer);
    if (!isAbort(error)) draw(false, toFailure(error));
  }
}
