package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"
	"go.yaml.in/yaml/v3"
)

// EnvPrefix begins every environment variable that sets a key.
const EnvPrefix = "PACT_SIGNER_"

// EnvFile names the configuration file where no flag does.
const EnvFile = EnvPrefix + "CONFIG"

// Setting is one key set by a flag.
type Setting struct {
	Path  string // for example issuers.0.url
	Value string
}

// Source is where a configuration comes from. The zero Source is the defaults.
type Source struct {
	// File is a YAML file; empty: the one that EnvFile names, or none.
	File string
	// Environ are NAME=VALUE pairs, as os.Environ gives them.
	Environ []string
	// Flags are settings in order; the last one wins.
	Flags []Setting
}

// Load reads a configuration, completes and validates it. Its errors name the
// key and where it was set, and never a value.
func Load(src Source) (Config, error) {
	env, fromEnv, err := readEnviron(src.Environ)
	if err != nil {
		return Config{}, err
	}
	k := koanf.New(".")
	add := func(where string, layer map[string]any) error {
		if err := checkKeys(where, "", layer, reflect.TypeFor[Config]()); err != nil {
			return err
		}
		err := k.Load(confmap.Provider(layer, ""), nil, koanf.WithMergeFunc(func(src, dest map[string]any) error {
			return merge("", src, dest)
		}))
		if err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		return nil
	}
	if file := cmpOr(src.File, fromEnv); file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return Config{}, fmt.Errorf("configuration file: %w", err)
		}
		layer, err := parseYAML(data)
		if err != nil {
			return Config{}, fmt.Errorf("%s: %w", file, err)
		}
		if err := add(file, layer); err != nil {
			return Config{}, err
		}
	}
	for _, s := range env {
		if err := add("environment", s.nested()); err != nil {
			return Config{}, err
		}
	}
	for _, s := range src.Flags {
		if s.Path == "" {
			return Config{}, errors.New("flag --set: write it as --set PATH=VALUE, for example --set issuers.0.url=https://pa.example.com")
		}
		if err := add("flag for "+s.Path, s.nested()); err != nil {
			return Config{}, err
		}
	}
	c := Default()
	if err := decode(k, &c); err != nil {
		return Config{}, err
	}
	return c.Complete()
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// parseYAML reads exactly one YAML document that is a mapping. The decoder
// refuses repeated keys.
func parseYAML(data []byte) (map[string]any, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc map[string]any
	if err := dec.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one YAML document; keep one")
	}
	return doc, nil
}

// decode puts the merged layers over c.
func decode(k *koanf.Koanf, c *Config) error {
	hooks := mapstructure.ComposeDecodeHookFunc(
		mapstructure.DecodeHookFuncValue(issuerDefaults),
		mapstructure.DecodeHookFuncType(durations),
		mapstructure.DecodeHookFuncType(commas),
		mapstructure.StringToBasicTypeHookFunc(),
	)
	err := k.UnmarshalWithConf("", c, koanf.UnmarshalConf{Tag: "yaml", DecoderConfig: &mapstructure.DecoderConfig{
		DecodeHook:  hooks,
		ErrorUnused: true,
		MatchName:   func(key, field string) bool { return key == field },
		TagName:     "yaml",
		Result:      c,
	}})
	if err == nil {
		return nil
	}
	var problems []error
	for _, e := range flatten(err) {
		var at *mapstructure.DecodeError
		if errors.As(e, &at) {
			problems = append(problems, fmt.Errorf("%s: %s", dotted(at.Name()), plain(at.Unwrap())))
		} else {
			problems = append(problems, errors.New("the configuration has a value of a wrong type"))
		}
	}
	return errors.Join(problems...)
}

func flatten(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, flatten(e)...)
		}
		return all
	}
	if _, ok := err.(*mapstructure.DecodeError); !ok {
		if inner := errors.Unwrap(err); inner != nil {
			return flatten(inner)
		}
	}
	return []error{err}
}

// dotted writes issuers[0].url as issuers.0.url.
func dotted(name string) string {
	return strings.NewReplacer("[", ".", "]", "").Replace(name)
}

// plain says what is wrong without the value, which may be a secret in the
// wrong place.
func plain(err error) string {
	var hook hookError
	if errors.As(err, &hook) {
		return string(hook)
	}
	var wrong *mapstructure.UnconvertibleTypeError
	if errors.As(err, &wrong) {
		return fmt.Sprintf("wants %s, not %T", kindName(wrong.Expected.Type()), wrong.Value)
	}
	return "the value has the wrong form"
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return "a list"
	case reflect.String:
		return "text (put it in quotes)"
	case reflect.Bool:
		return "true or false"
	}
	return "a number"
}

// hookError is a message of ours that quotes no value.
type hookError string

func (e hookError) Error() string { return string(e) }

// issuerDefaults starts every issuer from DefaultIssuer.
func issuerDefaults(from, to reflect.Value) (any, error) {
	if to.Type() == reflect.TypeFor[Issuer]() && to.CanSet() {
		to.Set(reflect.ValueOf(DefaultIssuer()))
	}
	return from.Interface(), nil
}

// durations takes durations from text only, and 0: another bare number would be
// nanoseconds.
func durations(from, to reflect.Type, v any) (any, error) {
	if to != reflect.TypeFor[time.Duration]() || from == to {
		return v, nil
	}
	if d, err := time.ParseDuration(fmt.Sprint(v)); err == nil {
		return d, nil
	}
	return nil, hookError("wants a duration with its unit, such as 120s or 1h30m")
}

// commas takes a list of plain values as text.
func commas(_, to reflect.Type, v any) (any, error) {
	s, ok := v.(string)
	if !ok || to != reflect.TypeFor[[]string]() {
		return v, nil
	}
	list := []string{}
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			list = append(list, item)
		}
	}
	return list, nil
}
