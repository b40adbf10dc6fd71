package valueschema

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestGenerate(t *testing.T) {
	const values = `# About the file.

# @schema.root
# title: T
# definitions: {port: {type: integer, minimum: 1}}
# @schema.root

# How many.
# @schema
# minimum: 1
# @schema
replicas: 3
image:
  # Two
  # lines.
  tag: ""
# @schema
# additionalProperties: {type: string}
# @schema
labels: {}
# A port.
# @schema
# $ref: "#/definitions/port"
# @schema
port: 1
# @schema
# items: {type: string}
# @schema
list: [a]
on: true
`
	out, err := Generate([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	var compact map[string]any
	if err := json.Unmarshal(out, &compact); err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(compact)
	const want = `{"$schema":"http://json-schema.org/draft-07/schema#","additionalProperties":false,"definitions":{"port":{"minimum":1,"type":"integer"}},` +
		`"properties":{"global":{"description":"Of the chart that this one is a part of.","type":"object"},` +
		`"image":{"additionalProperties":false,"properties":{"tag":{"default":"","description":"Two lines.","type":"string"}},"type":"object"},` +
		`"labels":{"additionalProperties":{"type":"string"},"type":"object"},` +
		`"list":{"items":{"type":"string"},"type":"array"},` +
		`"on":{"default":true,"type":"boolean"},` +
		`"port":{"allOf":[{"$ref":"#/definitions/port"}],"description":"A port."},` +
		`"replicas":{"default":3,"description":"How many.","minimum":1,"type":"integer"}},"title":"T","type":"object"}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestRefused(t *testing.T) {
	for values, want := range map[string]string{
		"- a":                             "no mapping",
		"a: [1]":                          "a: say what the items are",
		"a: {b: null}":                    "a.b: the value does not tell its type",
		"# @schema\na: 1":                 "1 marks",
		"x: &x 1\na: *x":                  "a: neither",
		"a: [":                            "line 1",
		"# @schema\n# [\n# @schema\na: 1": "the schema in the comment",
	} {
		if _, err := Generate([]byte(values)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", values, err, want)
		}
	}
}
