package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// days is a flag value: a positive duration as Go writes it, or whole days ("30d").
type days time.Duration

func (d *days) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

func (d *days) Type() string { return "duration" }

func (d *days) Set(s string) error {
	v, err := time.ParseDuration(s)
	if n, ok := strings.CutSuffix(s, "d"); ok {
		var whole uint64
		whole, err = strconv.ParseUint(n, 10, 16)
		v = time.Duration(whole) * 24 * time.Hour
	}
	if err != nil || v <= 0 {
		return fmt.Errorf("%q is not a duration like 15m, 24h or 30d", s)
	}
	*d = days(v)
	return nil
}
