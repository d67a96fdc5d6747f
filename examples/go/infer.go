// Opens the first variant of a package (the folder with runtime.json) that can be had, checks it and prints its name.
// docs/runtime.md describes the format. Models of one float32 input, the image.
//
//	go mod init infer && go get github.com/yalue/onnxruntime_go@v1.27.0
//	go run infer.go <path of libonnxruntime.so> models/NAME/package
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	ort "github.com/yalue/onnxruntime_go"
)

type samples struct {
	Elements int
	Stride   int
	Values   []float64
}

type output struct {
	samples
	Name      string
	Scales    []float64
	Tolerance float64
}

type variant struct {
	File      string
	SHA256    string
	InputType string `json:"input_type"`
	Needs     struct {
		CPU *struct {
			Architecture string
			AnyOf        []string `json:"any_of"`
			Otherwise    map[string]string
			Without      []string
			Reason       string
		}
	}
	Providers []struct {
		Name    string
		Options map[string]string
	}
	Session struct {
		Level         string            `json:"graph_optimization_level"`
		Mode          string            `json:"execution_mode"`
		IntraThreads  int               `json:"intra_op_threads"`
		InterThreads  int               `json:"inter_op_threads"`
		ConfigEntries map[string]string `json:"config_entries"`
	}
	SelfCheck struct{ Outputs []output }
}

type config struct {
	Format        int
	ImageInput    struct{ Name string }   `json:"image_input"`
	OtherInputs   []struct{ Name string } `json:"other_inputs"`
	Preprocessing struct {
		Scale     float32
		Mean, Std []float32
		Layout    string
	}
	Fallback  []string
	Variants  map[string]variant
	SelfCheck struct {
		Input struct {
			samples
			Shape []int64
		}
	}
}

var levels = map[string]ort.GraphOptimizationLevel{
	"off":      ort.GraphOptimizationLevelDisableAll,
	"basic":    ort.GraphOptimizationLevelEnableBasic,
	"extended": ort.GraphOptimizationLevelEnableExtended,
	"all":      ort.GraphOptimizationLevelEnableAll,
}

// Session entries: those of the file, and those that this CPU needs; /proc/cpuinfo has the names that needs.cpu has.
// Then the providers whose numbers are wrong on this CPU.
func (v variant) entries() (map[string]string, []string) {
	entries := map[string]string{}
	for key, value := range v.Session.ConfigEntries {
		entries[key] = value
	}
	here := map[string]string{"amd64": "x86_64", "arm64": "arm64"}[runtime.GOARCH]
	info, err := os.ReadFile("/proc/cpuinfo")
	if cpu := v.Needs.CPU; cpu != nil && cpu.Architecture == here && err == nil {
		words := strings.Fields(string(info))
		if !slices.ContainsFunc(cpu.AnyOf, func(feature string) bool { return slices.Contains(words, feature) }) {
			log.Print(cpu.Reason)
			for key, value := range cpu.Otherwise {
				entries[key] = value
			}
			return entries, cpu.Without
		}
	}
	return entries, nil
}

// A provider whose libraries are not on this machine is left out; the CPU's is always there, after all others.
func (v variant) options() (*ort.SessionOptions, error) {
	options, err := ort.NewSessionOptions()
	if err != nil {
		return nil, err
	}
	mode := ort.ExecutionModeSequential
	if v.Session.Mode == "parallel" {
		mode = ort.ExecutionModeParallel
	}
	steps := []error{
		options.SetGraphOptimizationLevel(levels[v.Session.Level]),
		options.SetExecutionMode(mode),
		options.SetIntraOpNumThreads(v.Session.IntraThreads),
		options.SetInterOpNumThreads(v.Session.InterThreads),
	}
	entries, without := v.entries()
	for key, value := range entries {
		steps = append(steps, options.AddSessionConfigEntry(key, value))
	}
	for _, err := range steps {
		if err != nil {
			options.Destroy()
			return nil, err
		}
	}
	for _, provider := range v.Providers {
		if slices.Contains(without, provider.Name) {
			continue
		}
		if err := appendProvider(options, provider.Name, provider.Options); err != nil {
			log.Printf("%s is not available: %v", provider.Name, err)
		}
	}
	return options, nil
}

func appendProvider(options *ort.SessionOptions, name string, settings map[string]string) error {
	switch name {
	case "CUDAExecutionProvider":
		cuda, err := ort.NewCUDAProviderOptions()
		if err != nil {
			return err
		}
		defer cuda.Destroy()
		if err := cuda.Update(settings); err != nil {
			return err
		}
		return options.AppendExecutionProviderCUDA(cuda)
	case "TensorrtExecutionProvider":
		rt, err := ort.NewTensorRTProviderOptions()
		if err != nil {
			return err
		}
		defer rt.Destroy()
		if err := rt.Update(settings); err != nil {
			return err
		}
		return options.AppendExecutionProviderTensorRT(rt)
	case "OpenVINOExecutionProvider":
		return options.AppendExecutionProviderOpenVINO(settings)
	}
	return nil
}

func (v variant) open(folder string, c config) (*ort.DynamicAdvancedSession, error) {
	if len(c.OtherInputs) > 0 {
		return nil, fmt.Errorf("it takes %s beside the image", c.OtherInputs[0].Name)
	}
	if v.InputType != "float32" {
		return nil, fmt.Errorf("its input is %s, this program feeds float32", v.InputType)
	}
	path := filepath.Join(folder, filepath.FromSlash(v.File))
	model, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(model); hex.EncodeToString(sum[:]) != v.SHA256 {
		return nil, fmt.Errorf("%s is not the file that runtime.json describes", v.File)
	}
	options, err := v.options()
	if err != nil {
		return nil, err
	}
	defer options.Destroy()
	outputs := []string{}
	for _, one := range v.SelfCheck.Outputs {
		outputs = append(outputs, one.Name)
	}
	return ort.NewDynamicAdvancedSession(path, []string{c.ImageInput.Name}, outputs, options)
}

// The self-check's image in the tensor's layout; in float32 at every step.
func (c config) painted() []float32 {
	shape, spec := c.SelfCheck.Input.Shape, c.Preprocessing
	rows, columns, channels := shape[2], shape[3], shape[1]
	if spec.Layout == "nhwc" {
		rows, columns, channels = shape[1], shape[2], shape[3]
	}
	data := make([]float32, shape[0]*rows*columns*channels)
	for image := int64(0); image < shape[0]; image++ {
		for channel := int64(0); channel < channels; channel++ {
			mean, std := spec.Mean[int(channel)%len(spec.Mean)], spec.Std[int(channel)%len(spec.Std)]
			for row := int64(0); row < rows; row++ {
				for column := int64(0); column < columns; column++ {
					pixel := float32((row*(column+16)/8 + 85*channel) % 256)
					place := ((image*channels+channel)*rows+row)*columns + column
					if spec.Layout == "nhwc" {
						place = ((image*rows+row)*columns+column)*channels + channel
					}
					data[place] = (pixel/spec.Scale - mean) / std
				}
			}
		}
	}
	return data
}

// Root mean square of (data - values) / scales at the samples of runtime.json; scales may be missing.
func deviation(data []float64, wanted samples, scales []float64) float64 {
	sum := 0.0
	for k, value := range wanted.Values {
		off := data[k*wanted.Stride] - value
		if scales != nil {
			off /= scales[k]
		}
		sum += off * off
	}
	return math.Sqrt(sum / float64(len(wanted.Values)))
}

func doubles(data []float32) []float64 {
	wide := make([]float64, len(data))
	for k, value := range data {
		wide[k] = float64(value)
	}
	return wide
}

// An output's elements, by its type.
func elements(value ort.Value, name string) ([]float64, error) {
	switch tensor := value.(type) {
	case *ort.Tensor[float32]:
		return doubles(tensor.GetData()), nil
	case *ort.Tensor[float64]:
		return tensor.GetData(), nil
	}
	return nil, fmt.Errorf("self-check: output %s is a %T, which this program does not read", name, value)
}

func (v variant) check(session *ort.DynamicAdvancedSession, c config) error {
	painted := c.painted()
	// A wrong tensor here would look like a wrong runtime below.
	if !(deviation(doubles(painted), c.SelfCheck.Input.samples, nil) < 1e-3) {
		return fmt.Errorf("the self-check's image is not painted as runtime.json has it")
	}
	image, err := ort.NewTensor(ort.NewShape(c.SelfCheck.Input.Shape...), painted)
	if err != nil {
		return err
	}
	defer image.Destroy()
	// ONNX Runtime allocates what is nil.
	got := make([]ort.Value, len(v.SelfCheck.Outputs))
	if err := session.Run([]ort.Value{image}, got); err != nil {
		return err
	}
	for place, wanted := range v.SelfCheck.Outputs {
		defer got[place].Destroy()
		data, err := elements(got[place], wanted.Name)
		if err != nil {
			return err
		}
		if len(data) != wanted.Elements {
			return fmt.Errorf("self-check: output %s has %d elements, not %d", wanted.Name, len(data), wanted.Elements)
		}
		off := deviation(data, wanted.samples, wanted.Scales)
		if !(off <= wanted.Tolerance) {
			return fmt.Errorf("self-check: output %s lies %.3g of its spread off, %g is allowed", wanted.Name, off, wanted.Tolerance)
		}
	}
	return nil
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: infer <path of libonnxruntime.so> <package>")
	}
	library, folder := os.Args[1], os.Args[2]
	text, err := os.ReadFile(filepath.Join(folder, "runtime.json"))
	if err != nil {
		log.Fatal(err)
	}
	var c config
	if err := json.Unmarshal(text, &c); err != nil {
		log.Fatal(err)
	}
	if c.Format != 1 {
		log.Fatalf("runtime.json has format %d, this program reads 1", c.Format)
	}
	ort.SetSharedLibraryPath(library)
	if err := ort.InitializeEnvironment(); err != nil {
		log.Fatal(err)
	}
	defer ort.DestroyEnvironment()
	for _, name := range c.Fallback {
		v := c.Variants[name]
		session, err := v.open(folder, c)
		if err != nil {
			log.Printf("%s is skipped: %v", name, err)
			continue
		}
		defer session.Destroy()
		if err := v.check(session, c); err != nil {
			log.Fatalf("%s: %v", name, err)
		}
		fmt.Println(name)
		return
	}
	log.Fatal("no variant opens")
}
