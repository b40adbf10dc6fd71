package main

import "errors"

// effectFlag is the value of --effect.
type effectFlag string

func (f *effectFlag) String() string { return string(*f) }
func (f *effectFlag) Type() string   { return "string" }

func (f *effectFlag) Set(s string) error {
	if s != "inspect" && s != "change" {
		return errors.New("say inspect or change")
	}
	*f = effectFlag(s)
	return nil
}
