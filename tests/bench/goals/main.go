//go:build linux

// Command goals compares SoftRNIC with the limits of the machine. It prints a table of
// measurements, goals and results. It runs softrnic perf and tests/bench/yardstick in turn and
// compares the medians. Both run in a network namespace of their own, which leaves nothing behind.
// The command needs root and an otherwise idle machine.
//
// Usage:
//
//	go build -o goals ./tests/bench/goals && sudo ./goals [flags]
//
//	sudo go run ./tests/bench/goals                          # all rows: minutes
//	sudo go run ./tests/bench/goals -run 'WRITE 64 KiB.*TAP' # some rows
//	sudo go run ./tests/bench/goals -summary                 # the worst row of each group
//	sudo go run ./tests/bench/goals -list                    # prints the rows only
//	sudo go run ./tests/bench/goals -runs 3                  # three runs; the worst counts
//	sudo go run ./tests/bench/goals -rounds 9 -json          # with every sample
//	sudo go run ./tests/bench/goals -run 'TAP' -pprof dir    # with CPU profiles of softrnic
//	sudo go run ./tests/bench/goals -picture throughput.svg  # throughput by message size
//	sudo go run ./tests/bench/goals -sockets-picture x.svg   # rsockets beside TCP
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
)

// options are the flags.
type options struct {
	run      string
	rounds   int
	runs     int
	duration time.Duration
	json     bool
	summary  bool
	list     bool
	pprof    string
	softrnic string
	yard     string
	libs     string
	figures  string
	picture  string
	sockets  string
}

func main() {
	var o options
	flag.StringVar(&o.run, "run", ".", "measure the rows that match this regular expression")
	flag.IntVar(&o.rounds, "rounds", 5, "measurements of each row; the medians count")
	flag.IntVar(&o.runs, "runs", 1, "runs over all rows; the worst run of each row counts")
	flag.DurationVar(&o.duration, "duration", 300*time.Millisecond, "duration of each measurement")
	flag.BoolVar(&o.json, "json", false, "print JSON, with every sample")
	flag.BoolVar(&o.summary, "summary", false, "print only the worst row of each group")
	flag.BoolVar(&o.list, "list", false, "only print what would be measured")
	flag.StringVar(&o.pprof, "pprof", "", "write CPU profiles of softrnic's last round of each measurement into this directory")
	flag.StringVar(&o.softrnic, "softrnic", "", "softrnic program; default: built from the working tree")
	flag.StringVar(&o.yard, "yardstick", "", "yardstick program; default: built from tests/bench/yardstick of the working tree")
	flag.StringVar(&o.libs, "libs", "", "directory of the drop-in libraries; default: built from the working tree")
	flag.StringVar(&o.figures, "figures", "", "program compiled from tests/bench/goals/testdata/figures.c; default: compiled here")
	flag.StringVar(&o.picture, "picture", "", "instead of measuring rows, draw throughput by message size into this SVG file")
	flag.StringVar(&o.sockets, "sockets-picture", "", "instead of measuring rows, draw rsockets beside TCP into this SVG file")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := measure(ctx, &o, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "goals:", err)
		os.Exit(1)
	}
}

// measure runs the measurements that o selects. A missed goal is no error.
func measure(ctx context.Context, o *options, stdout, stderr io.Writer) (err error) {
	wanted, err := regexp.Compile(o.run)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	if o.rounds < 1 || o.runs < 1 || o.duration <= 0 || flag.NArg() > 0 {
		return fmt.Errorf("-rounds %d, -runs %d, -duration %v, %d arguments: -rounds and -runs must be at least 1 and -duration "+
			"positive, without arguments",
			o.rounds, o.runs, o.duration, flag.NArg())
	}
	chosen := choose(experiments(), wanted)
	if len(chosen) == 0 {
		return fmt.Errorf("-run %q matches no row: see -list", o.run)
	}
	if !o.list {
		lab, failed := newLab(ctx, o)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, lab.Close()) }()
		if o.picture != "" {
			return picture(ctx, lab, o.rounds, o.picture, stderr)
		}
		if o.sockets != "" {
			return socketPicture(ctx, lab, o.rounds, o.sockets, stderr)
		}
		for range o.runs {
			for _, e := range chosen {
				if ctx.Err() == nil { // print what has been measured
					e.run(ctx, lab, o.rounds, stderr)
				}
			}
		}
	}
	var rows []*row
	for _, e := range chosen {
		rows = append(rows, e.rows...)
	}
	return print(stdout, rows, o)
}

// choose returns the selected rows, and the experiments that have any of them.
func choose(all []*experiment, wanted *regexp.Regexp) (chosen []*experiment) {
	for _, e := range all {
		var rows []*row
		for _, r := range e.rows {
			if wanted.MatchString(r.What) {
				rows = append(rows, r)
			}
		}
		if len(rows) > 0 {
			e.rows = rows
			chosen = append(chosen, e)
		}
	}
	return chosen
}

// print writes the rows in the order of the list.
func print(w io.Writer, rows []*row, o *options) error {
	for _, r := range rows {
		r.conclude()
	}
	if o.summary {
		rows = summarise(rows)
	}
	if o.json {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(rows)
	}
	t := table.NewWriter()
	t.AppendHeader(table.Row{"what", "goal", "measured", "best", "SoftRNIC", "yardstick", "", "floor"})
	for _, r := range rows {
		t.AppendRow(table.Row{r.What, r.goalText(), r.measuredText(), r.bestText(), r.subjectText(), r.yardstickText(), r.verdict(),
			r.floorText()})
	}
	_, err := fmt.Fprintln(w, t.RenderMarkdown())
	return err
}

// summarise keeps the worst row of each group, and states the number of rows in the group.
func summarise(rows []*row) (worst []*row) {
	number := map[string]int{}
	for _, r := range rows {
		number[r.Group]++
		i := slices.IndexFunc(worst, func(o *row) bool { return o.Group == r.Group })
		switch {
		case i < 0:
			worst = append(worst, r)
		case r.worse(worst[i]):
			worst[i] = r
		}
	}
	for _, r := range worst {
		if n := number[r.Group]; n > 1 {
			r.What = fmt.Sprintf("%s (the worst of %d: %s)", r.Group, n, r.What)
		}
	}
	return worst
}
