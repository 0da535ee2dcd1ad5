// What a user of the npm package `openai` does, against the server named in the first argument; answers as one JSON object.
const OpenAI = require("openai");

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "unused", maxRetries: 0 });
const completion = { model: "tiny", prompt: "the cat", max_tokens: 20, seed: 1 };
const chat = { model: "tiny", messages: [{ role: "user", content: "hi" }], max_completion_tokens: 15, seed: 2 };

async function text(stream, of) {
  let whole = "";
  for await (const chunk of stream) if (chunk.choices.length) whole += of(chunk.choices[0]) ?? "";
  return whole;
}

async function refused(call) {
  try {
    await call();
    return null;
  } catch (error) {
    return { name: error.constructor.name, status: error.status, message: error.message, param: error.param };
  }
}

async function main() {
  const found = {};
  found.completion = await client.completions.create(completion);
  found.again = (await client.completions.create(completion)).choices[0].text;
  found.streamed = await text(await client.completions.create({ ...completion, stream: true }), (c) => c.text);
  const stop = found.completion.choices[0].text.slice(3, 5);
  found.stopped = (await client.completions.create({ ...completion, stop })).choices[0];
  found.chat = await client.chat.completions.create({ ...chat, logprobs: true, speculation: { gamma: 4 } });
  found.chatStreamed = await text(
    await client.chat.completions.create({ ...chat, stream: true }), (c) => c.delta.content,
  );
  const helper = client.chat.completions.stream({ ...chat, stream_options: { include_usage: true } });
  found.usage = (await helper.finalChatCompletion()).usage;
  found.bad = await refused(() => client.completions.create({ ...completion, temperature: 9 }));
  found.unknown = await refused(() => client.chat.completions.create({ ...chat, model: "other" }));
  found.models = (await client.models.list()).data.map((model) => model.id);
  console.log(JSON.stringify(found));
}

main();
