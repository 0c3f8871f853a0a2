// @grpc/grpc-js with the protos of this repository.
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

let input = "";
for await (const piece of process.stdin) input += piece;
const task = JSON.parse(input);
const definition = loader.loadSync("quire/v1/inference.proto", { includeDirs: [task.protos], keepCase: true });
const { InferenceService } = grpc.loadPackageDefinition(definition).quire.v1;
const client = new InferenceService(task.grpc, grpc.credentials.createInsecure());
const texts = [];
for (const { prompt, params } of task.cases) {
  let text = "";
  for await (const event of client.Generate({ text: prompt, sampling_params: params })) text += event.delta?.text ?? "";
  texts.push(text);
}
process.stdout.write(JSON.stringify(texts));
client.close();
