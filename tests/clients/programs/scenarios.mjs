// Runs a client's scenarios and prints what the client saw. Every Node program of this folder uses it.
// The task and the results are those of scenarios.py.
import { z } from "zod";

export const task = JSON.parse(process.argv[2]);
export const person = z.object({ name: z.string(), age: z.number() });
export const tooMuch = 9; // no API accepts it as temperature or top_p
export const unknownModel = "unknown-model";
export const tool = {
  name: "get_weather",
  description: "Returns the weather in a city.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};

// Calls every scenario of every client and prints the results.
export async function runScenarios(clients) {
  const results = {};
  for (const [client, scenarios] of Object.entries(clients)) {
    results[client] = {};
    for (const [name, run] of Object.entries(scenarios)) {
      try {
        results[client][name] = await run();
      } catch (error) {
        results[client][name] = { failure: String(error.stack ?? error).slice(0, 1500) };
      }
    }
  }
  process.stdout.write(JSON.stringify(results));
}

// Returns the class and the HTTP status of the error that a call raises.
export async function describeError(attempt) {
  try {
    await attempt();
  } catch (error) {
    return { error: error.constructor.name, status: error.status ?? error.statusCode ?? null };
  }
  return { error: null, status: null };
}

// Tells whether a stream that breaks off raises an error with the engine's message: otherwise it looks whole.
export async function readBrokenStream(attempt) {
  try {
    await attempt();
  } catch (error) {
    return { raised: true, has_message: String(error).includes(task.fault) };
  }
  return { raised: false };
}

// Returns the text of a stream, and whether it came in pieces.
export async function joinPieces(pieces) {
  const texts = [];
  for await (const piece of pieces) if (piece) texts.push(piece);
  return { text: texts.join(""), in_pieces: texts.length > 1 };
}
