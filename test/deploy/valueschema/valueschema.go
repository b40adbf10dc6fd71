// Package valueschema makes the JSON schema of a Helm chart's values from the
// comments in its values.yaml, in the form of dadav/helm-schema:
//
//	# What it is.
//	# @schema
//	# enum: [IfNotPresent, Always, Never]
//	# @schema
//	pullPolicy: IfNotPresent
//
// Between the two marks stands the key's schema in YAML; what it leaves out
// follows from the value: type, properties, and the default of a plain value. The
// rest of the comment is the description. A block between marks @schema.root, at the
// top of the file, is the schema's own, with its definitions.
//
// A mapping takes the keys that it has and no other, unless its schema says
// additionalProperties: a key that is mistyped is refused by its name.
package valueschema

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// mark and rootMark enclose a schema in a comment.
const (
	mark     = "@schema"
	rootMark = "@schema.root"
)

// Generate returns the schema, indented, of the values.yaml.
func Generate(values []byte) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(values, &doc); err != nil {
		return nil, err
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("values are no mapping")
	}
	schema, _, err := block(string(values), rootMark)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rootMark, err)
	}
	of, err := mapping("", doc.Content[0], schema)
	if err != nil {
		return nil, err
	}
	of["$schema"] = "http://json-schema.org/draft-07/schema#"
	// Helm gives a chart that is a part of another these two.
	properties := of["properties"].(map[string]any)
	properties["global"] = map[string]any{"description": "Of the chart that this one is a part of.", "type": "object"}
	out, err := json.MarshalIndent(of, "", "  ")
	return append(out, '\n'), err
}

// mapping adds to schema what a mapping's keys say.
func mapping(path string, node *yaml.Node, schema map[string]any) (map[string]any, error) {
	properties := map[string]any{}
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		of, err := property(at, key, value)
		if err != nil {
			return nil, err
		}
		properties[key.Value] = of
	}
	schema["type"] = "object"
	if len(properties) > 0 {
		schema["properties"] = properties
	}
	if _, said := schema["additionalProperties"]; !said {
		schema["additionalProperties"] = false
	}
	return schema, nil
}

// property is the schema of one key.
func property(path string, key, value *yaml.Node) (map[string]any, error) {
	schema, description, err := block(lastParagraph(key.HeadComment), mark)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if description != "" {
		schema["description"] = description
	}
	if _, elsewhere := schema["$ref"]; elsewhere { // draft 7 reads nothing beside a reference
		return map[string]any{"allOf": []any{map[string]any{"$ref": schema["$ref"]}}, "description": description}, nil
	}
	switch value.Kind {
	case yaml.MappingNode:
		return mapping(path, value, schema)
	case yaml.SequenceNode:
		if schema["items"] == nil {
			return nil, fmt.Errorf("%s: say what the items are", path)
		}
		schema["type"] = "array"
		return schema, nil
	case yaml.ScalarNode:
		return schema, scalar(path, value, schema)
	}
	return nil, fmt.Errorf("%s: neither a mapping, a list nor a plain value", path)
}

// scalar adds the type and the default of a plain value.
func scalar(path string, value *yaml.Node, schema map[string]any) error {
	var v any
	if err := value.Decode(&v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if _, said := schema["type"]; !said {
		types := map[string]string{"!!str": "string", "!!int": "integer", "!!float": "number", "!!bool": "boolean"}
		t, known := types[value.ShortTag()]
		if !known {
			return fmt.Errorf("%s: the value does not tell its type: say it", path)
		}
		schema["type"] = t
	}
	if v != nil {
		schema["default"] = v
	}
	return nil
}

// block splits a comment into the schema between two marks and the rest, in one
// line. Without marks the schema is empty.
func block(comment, mark string) (schema map[string]any, rest string, err error) {
	var inside bool
	var marks int
	var text, said []string
	for line := range strings.Lines(comment) {
		line, isComment := strings.CutPrefix(strings.TrimSpace(line), "#")
		if !isComment {
			continue
		}
		switch {
		case strings.TrimSpace(line) == "# "+mark, strings.TrimSpace(line) == mark:
			inside = !inside
			marks++
		case inside:
			text = append(text, strings.TrimPrefix(line, " "))
		default:
			said = append(said, strings.TrimSpace(line))
		}
	}
	if marks != 0 && marks != 2 {
		return nil, "", fmt.Errorf("%d marks %s, not two", marks, mark)
	}
	schema = map[string]any{}
	if err := yaml.Unmarshal([]byte(strings.Join(text, "\n")), &schema); err != nil {
		return nil, "", fmt.Errorf("the schema in the comment: %w", err)
	}
	return schema, strings.Join(said, " "), nil
}

// lastParagraph is the part of a comment that belongs to the key below it.
func lastParagraph(comment string) string {
	if i := strings.LastIndex(comment, "\n\n"); i >= 0 {
		return comment[i+2:]
	}
	return comment
}
