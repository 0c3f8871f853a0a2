// The stock `openai` package of npm, streamed.
import OpenAI from "openai";

let input = "";
for await (const piece of process.stdin) input += piece;
const task = JSON.parse(input);
const client = new OpenAI({ baseURL: `${task.http}/v1`, apiKey: "none" });
const texts = [];
for (const { prompt, params } of task.cases) {
  let text = "";
  const stream = await client.completions.create({ model: task.model, prompt, stream: true, ...params });
  for await (const chunk of stream) text += chunk.choices[0]?.text ?? "";
  texts.push(text);
}
process.stdout.write(JSON.stringify(texts));
