// Reads embeddings with the openai Node SDK. Argument: a file with {url, model, texts}.
// Prints {default, floats, error}: the vectors as the SDK returns them by default (it asks for base64 on the wire) and
// with encoding_format float, and the error for an invalid input.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const { url, model, texts } = JSON.parse(readFileSync(process.argv[2], "utf-8"));
const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 });

async function read(fields) {
  const reply = await client.embeddings.create({ model, input: texts, ...fields });
  return reply.data.map((entry) => Array.from(entry.embedding));
}

let error = null;
try {
  await client.embeddings.create({ model, input: [texts[0], ""] });
} catch (caught) {
  error = { kind: caught.constructor.name, code: caught.code, param: caught.param };
}
console.log(JSON.stringify({ default: await read({}), floats: await read({ encoding_format: "float" }), error }));
