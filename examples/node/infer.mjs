// Opens a packaged model by its runtime.json, checks that this machine gives the numbers that were validated, and runs it.
//
//   node infer.mjs PACKAGE [--input tensor.bin] [--output FOLDER] [--variant NAME] [--runtime node|web] [--threads N] [--time RUNS]
//
// PACKAGE is the folder with runtime.json. `--input` is a raw little-endian tensor of the graph's input type (numpy: array.tofile);
// without it the self-check's image is run. `--output` gets every output as <name>.bin. What was done goes to stdout as one JSON
// line, reasons and progress to stderr. Exit codes: 0 done, 1 the self-check failed or no variant opens, 2 a mistake of the caller.
// docs/runtime.md describes the format.
import { createHash } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';

const FORMAT = 1;
// ONNX Runtime's names of providers, as its JavaScript packages call them; what is not there they do not have.
const PROVIDERS = {
  node: { CPUExecutionProvider: 'cpu', CUDAExecutionProvider: 'cuda', TensorrtExecutionProvider: 'tensorrt' },
  web: { CPUExecutionProvider: 'wasm' },
};
const LEVELS = { off: 'disabled', basic: 'basic', extended: 'extended', all: 'all' };
const ARRAYS = { float32: Float32Array, uint8: Uint8Array };

class Mistake extends Error {}
class Refused extends Error {}

const log = (text) => process.stderr.write(`${text}\n`);
const product = (numbers) => numbers.reduce((left, right) => left * right, 1);

function readConfig(folder) {
  const file = path.join(folder, 'runtime.json');
  let config;
  try {
    config = JSON.parse(fs.readFileSync(file, 'utf8'));
  } catch (error) {
    throw new Mistake(`${file}: ${error.code === 'ENOENT' ? 'no such file; name the folder that `package` made' : error.message}`);
  }
  if (config.format !== FORMAT) throw new Mistake(`${file} has format ${config.format}, this program reads ${FORMAT}`);
  return config;
}

// The file, once its hash is the one in runtime.json: a truncated download must not become a strange answer.
function verified(folder, entry) {
  if (!/^[a-z0-9_]+\/model\.onnx$/.test(entry.file)) throw new Refused(`${entry.file} is no file of a package`);
  const file = path.join(folder, entry.file);
  if (!fs.existsSync(file)) throw new Refused(`${entry.file}: no such file`);
  const found = createHash('sha256').update(fs.readFileSync(file)).digest('hex');
  if (found !== entry.sha256) {
    throw new Refused(`${entry.file} has sha256 ${found.slice(0, 12)}..., runtime.json says ${entry.sha256.slice(0, 12)}...`);
  }
  return file;
}

// Session entries: those the file was validated with, and those that this CPU needs for right INT8 numbers.
function configEntries(entry) {
  const entries = { ...entry.session.config_entries };
  const wanted = entry.needs.cpu;
  const here = { x64: 'x86_64', arm64: 'arm64' }[process.arch];
  if (!wanted || wanted.architecture !== here || !fs.existsSync('/proc/cpuinfo')) return entries;
  const flags = /^(?:flags|Features)\s*:(.*)$/m.exec(fs.readFileSync('/proc/cpuinfo', 'utf8'))?.[1].trim().split(/\s+/) ?? [];
  if (wanted.any_of.some((feature) => flags.includes(feature))) return entries;
  log(`this CPU has none of ${wanted.any_of.join(', ')}: ${wanted.reason}`);
  return { ...entries, ...wanted.otherwise };
}

// A session with the first providers that open; a provider whose libraries are not on this machine is left out.
async function openSession(ort, runtime, file, entry, threads) {
  const providers = entry.providers.map((provider) => PROVIDERS[runtime][provider.name]).filter(Boolean);
  if (providers.length === 0) throw new Refused(`onnxruntime-${runtime} has none of its providers`);
  const count = threads ?? entry.session.intra_op_threads;
  const options = {
    graphOptimizationLevel: LEVELS[entry.session.graph_optimization_level],
    executionMode: entry.session.execution_mode,
    interOpNumThreads: entry.session.inter_op_threads,
    // 0, one a physical core, is ONNX Runtime's own default.
    ...(count > 0 && { intraOpNumThreads: count }),
    extra: configEntries(entry),
    logSeverityLevel: 3,
  };
  // WASM reads no files, and has one pool of threads for all sessions.
  if (runtime === 'web' && count > 0) ort.env.wasm.numThreads = count;
  const model = runtime === 'web' ? new Uint8Array(fs.readFileSync(file)) : file;
  for (;;) {
    try {
      return { session: await ort.InferenceSession.create(model, { ...options, executionProviders: providers }), providers };
    } catch (error) {
      if (providers.length === 1) throw new Refused(`ONNX Runtime cannot load ${entry.file}: ${error.message.split('\n')[0]}`);
      log(`${providers.shift()} is not available: ${error.message.split('\n')[0]}`);
    }
  }
}

// The image of the self-check: the formula's pixels, normalised as photos are. In float32 at each step as NumPy does it: INT8 may
// answer to the last bit of its input with a changed code.
function painted(config) {
  const { shape } = config.selfcheck.input;
  const { layout, dtype, scale, mean, std } = config.preprocessing;
  const { fround } = Math;
  const last = layout === 'nhwc';
  const [rows, columns, channels] = last ? shape.slice(1) : [shape[2], shape[3], shape[1]];
  const data = new ARRAYS[dtype](product(shape));
  for (let image = 0; image < shape[0]; image++)
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++)
        for (let channel = 0; channel < channels; channel++) {
          const pixel = (Math.floor((row * (column + 16)) / 8) + 85 * channel) % 256;
          const place = last
            ? ((image * rows + row) * columns + column) * channels + channel
            : ((image * channels + channel) * rows + row) * columns + column;
          if (dtype === 'uint8') {
            data[place] = pixel;
            continue;
          }
          const centred = fround(fround(pixel / fround(scale)) - fround(mean[channel % mean.length]));
          data[place] = centred / fround(std[channel % std.length]);
        }
  return { data, shape };
}

// Root mean square of (got - value) / scale over the values of runtime.json.
function deviation(data, wanted, scales) {
  const sum = wanted.values.reduce((total, value, k) => total + ((data[k * wanted.stride] - value) / (scales?.[k] ?? 1)) ** 2, 0);
  return Math.sqrt(sum / wanted.values.length);
}

function checkOutputs(variant, entry, outputs) {
  const found = {};
  for (const wanted of entry.selfcheck?.outputs ?? []) {
    const { data } = outputs[wanted.name];
    if (data.length !== wanted.elements) {
      throw new Error(`self-check of ${variant}: output ${wanted.name} has ${data.length} elements, not ${wanted.elements}`);
    }
    found[wanted.name] = deviation(data, wanted, wanted.scales);
    // So that NaN is no pass.
    if (!(found[wanted.name] <= wanted.tolerance)) {
      throw new Error(
        `self-check of ${variant}: output ${wanted.name} lies ${found[wanted.name].toPrecision(3)} of its spread off the ` +
          `reference, ${wanted.tolerance} is allowed`,
      );
    }
  }
  return found;
}

function readTensor(file, type, usual) {
  const bytes = fs.readFileSync(file);
  const data = new ARRAYS[type](bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
  const one = product(usual.slice(1));
  if (data.length === 0 || data.length % one) {
    throw new Mistake(`${file} holds ${data.length} ${type} values; an image is ${usual.slice(1).join(' x ')}`);
  }
  return { data, shape: [data.length / one, ...usual.slice(1)] };
}

// What an input beside the image takes: numbers, or a side of the image's tensor.
function otherInput(ort, { name, type, shape, values }, layout, [batch, ...image]) {
  const sides = layout === 'nhwc' ? { height: image[0], width: image[1] } : { height: image[1], width: image[2] };
  const flat = values.map((value) => sides[value] ?? value);
  const first = shape.length > 1 ? [shape[0]].map((size) => (Number.isInteger(size) ? size : batch)) : [];
  const known = shape.slice(first.length).filter(Number.isInteger).reduce((product, size) => product * size, 1);
  let open = true;
  const behind = shape.slice(first.length).map((size) => {
    if (Number.isInteger(size)) return size;
    const length = open ? Math.max(1, Math.floor(flat.length / Math.max(known, 1))) : 1;
    open = false;
    return length;
  });
  const dims = [...first, ...behind];
  const all = Array.from({ length: dims.reduce((product, size) => product * size, 1) }, (_, place) => flat[place % flat.length]);
  const arrays = { float32: Float32Array, float64: Float64Array, int32: Int32Array, uint8: Uint8Array, bool: Uint8Array };
  if (type === 'int64') return new ort.Tensor(type, BigInt64Array.from(all.map(BigInt)), dims);
  if (!arrays[type]) throw new Refused(`input ${name} is ${type}`);
  return new ort.Tensor(type, arrays[type].from(all), dims);
}

async function main() {
  const { values: options, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      input: { type: 'string' },
      output: { type: 'string' },
      variant: { type: 'string' },
      runtime: { type: 'string', default: 'node' },
      threads: { type: 'string' },
      time: { type: 'string' },
    },
  });
  if (positionals.length !== 1) throw new Mistake('which package? node infer.mjs models/NAME/package');
  if (!PROVIDERS[options.runtime]) throw new Mistake(`--runtime ${options.runtime}: it is node or web`);
  const [folder] = positionals;
  const config = readConfig(folder);
  const chain = options.variant ? [options.variant] : config.fallback;
  if (!chain.every((name) => config.variants[name])) {
    throw new Mistake(`no variant ${options.variant}; there are: ${config.fallback.join(', ')}`);
  }
  for (const name of ['threads', 'time']) {
    const given = options[name];
    if (given !== undefined && !/^\d+$/.test(given)) throw new Mistake(`--${name} ${given}: it is a whole number`);
  }
  const threads = options.threads === undefined ? undefined : Number(options.threads);
  const ort = await import(`onnxruntime-${options.runtime}`);
  // What ONNX Runtime cannot load is told below, with what is taken in its place.
  ort.env.logLevel = 'fatal';

  const image = painted(config);
  // A wrong tensor here would look like a wrong runtime below.
  if (!(deviation(image.data, config.selfcheck.input) < 1e-3)) {
    throw new Error('the self-check\'s image is not painted as runtime.json has it');
  }

  const skipped = [];
  let opened;
  for (const name of chain) {
    const entry = config.variants[name];
    try {
      if (!ARRAYS[entry.input_type]) throw new Refused(`its input is ${entry.input_type}, which this example does not feed`);
      opened = { name, entry, ...(await openSession(ort, options.runtime, verified(folder, entry), entry, threads)) };
      break;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      skipped.push({ variant: name, reason: error.message });
      log(`${name} is skipped: ${error.message}`);
    }
  }
  if (!opened) {
    const reasons = skipped.map((one) => `${one.variant}: ${one.reason}`);
    throw new Error(`no variant of ${config.model} opens: ${reasons.join('; ')}`);
  }

  const { name, entry, session, providers } = opened;
  const run = ({ data, shape }) => {
    const feeds = { [config.image_input.name]: new ort.Tensor(entry.input_type, data, shape) };
    for (const other of config.other_inputs ?? []) feeds[other.name] = otherInput(ort, other, config.preprocessing.layout, shape);
    return session.run(feeds);
  };
  const checkable = (entry.selfcheck?.outputs.length ?? 0) > 0;
  const selfcheck = checkable ? checkOutputs(name, entry, await run(image)) : {};
  if (!checkable) log(`${name} cannot be checked: ${JSON.stringify(entry.selfcheck?.left_out ?? 'no self-check in runtime.json')}`);

  const tensor = options.input ? readTensor(options.input, entry.input_type, config.selfcheck.input.shape) : image;
  const outputs = await run(tensor);
  if (options.output) {
    fs.mkdirSync(options.output, { recursive: true });
    for (const [key, { data }] of Object.entries(outputs)) {
      fs.writeFileSync(path.join(options.output, `${key}.bin`), Buffer.from(data.buffer, data.byteOffset, data.byteLength));
    }
  }
  const report = { model: config.model, variant: name, runtime: options.runtime, providers, skipped, selfcheck };
  report.outputs = Object.fromEntries(Object.entries(outputs).map(([key, { dims, type }]) => [key, { dims, type }]));
  if (options.time) {
    const times = [];
    for (let round = 0; round < Number(options.time) + 3; round++) {
      const start = performance.now();
      await run(tensor);
      times.push(performance.now() - start);
    }
    const sorted = times.slice(3).sort((left, right) => left - right);
    report.median_ms = Number(sorted[sorted.length >> 1].toFixed(3));
  }
  process.stdout.write(`${JSON.stringify(report)}\n`);
}

main().catch((error) => {
  log(`error: ${error.message}`);
  process.exitCode = error instanceof Mistake || error.code?.startsWith?.('ERR_PARSE_ARGS') ? 2 : 1;
});
