package main

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The flag types below differ from those of package flag in their errors, which say what to write.

type durationValue struct {
	d     *time.Duration
	check func(time.Duration) error
}

func duration(fs *flag.FlagSet, d *time.Duration, name string, value time.Duration, check func(time.Duration) error, usage string) {
	*d = value
	fs.Var(&durationValue{d, check}, name, usage)
}

func (v *durationValue) String() string {
	if v.d == nil {
		return ""
	}
	return v.d.String()
}

func (v *durationValue) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		return errors.New("write a duration such as 1s or 2m")
	}
	if err := v.check(d); err != nil {
		return err
	}
	*v.d = d
	return nil
}

func positive(d time.Duration) error {
	if d <= 0 {
		return errors.New("write a duration above 0s")
	}
	return nil
}

func notNegative(d time.Duration) error {
	if d < 0 {
		return errors.New("write a duration of 0s or more")
	}
	return nil
}

type numberValue struct {
	n   *int
	min int
}

func number(fs *flag.FlagSet, n *int, name string, value, min int, usage string) {
	*n = value
	fs.Var(&numberValue{n, min}, name, usage)
}

func (v *numberValue) String() string {
	if v.n == nil {
		return ""
	}
	return strconv.Itoa(*v.n)
}

func (v *numberValue) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < v.min {
		return fmt.Errorf("write a whole number of %d or more", v.min)
	}
	*v.n = n
	return nil
}

// listValue collects the values of a repeatable flag.
type listValue struct {
	values *[]string
	// commas: several values may be joined by them.
	commas bool
}

func list(fs *flag.FlagSet, values *[]string, name, usage string) {
	fs.Var(&listValue{values, false}, name, usage)
}

func commaList(fs *flag.FlagSet, values *[]string, name, usage string) {
	fs.Var(&listValue{values, true}, name, usage)
}

func (v *listValue) String() string {
	if v.values == nil {
		return ""
	}
	return strings.Join(*v.values, ",")
}

func (v *listValue) Set(s string) error {
	if v.commas {
		*v.values = append(*v.values, strings.Split(s, ",")...)
	} else {
		*v.values = append(*v.values, s)
	}
	return nil
}
