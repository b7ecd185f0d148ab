//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
)

// row is a goal and the samples that decide whether it is reached.
type row struct {
	Group   string  `json:"group"` // the line of the summary to which the row belongs
	What    string  `json:"what"`
	Goal    float64 `json:"goal"`    // of the ratio, or of SoftRNIC's own figure without a yardstick
	AtMost  bool    `json:"at_most"` // the goal is an upper bound
	Unit    string  `json:"unit"`    // of the samples
	Against string  `json:"against,omitempty"`

	SoftRNIC  []float64 `json:"softrnic"`
	Yardstick []float64 `json:"yardstick,omitempty"`
	// Floor has what the result would be if SoftRNIC took no time but for the parts that FloorOf
	// names, which are measured in the same rounds.
	Floor   []float64 `json:"floor,omitempty"`
	FloorOf string    `json:"floor_of,omitempty"`

	Measured float64   `json:"measured"` // of the medians
	Best     float64   `json:"best"`     // of the best samples: others are worse if the machine is taken away
	Met      bool      `json:"met"`
	Failed   string    `json:"failed,omitempty"`
	Runs     []float64 `json:"runs"` // the result of each run; the other fields are those of the worst
	// only reports that the figure is not compared with anything.
	only bool
}

// add adds a sample.
func (r *row) add(softrnic float64, yardstick ...float64) {
	r.SoftRNIC = append(r.SoftRNIC, softrnic)
	r.Yardstick = append(r.Yardstick, yardstick...)
}

// begin begins a run without samples, and returns the row as it was.
func (r *row) begin() (before row) {
	before = *r
	r.SoftRNIC, r.Yardstick, r.Floor, r.Failed = nil, nil, nil, ""
	return before
}

// end ends a run. The row keeps the worse of this run and the previous ones.
func (r *row) end(before *row) {
	r.conclude()
	r.Runs = append(r.Runs, r.Measured)
	if len(before.Runs) > 0 && before.worse(r) {
		before.Runs = r.Runs
		*r = *before
	}
}

// conclude compares the medians.
func (r *row) conclude() {
	if len(r.SoftRNIC) == 0 || r.Failed != "" {
		return
	}
	best := slices.Max[[]float64]
	if r.AtMost {
		best = slices.Min[[]float64]
	}
	r.Measured, r.Best = median(r.SoftRNIC), best(r.SoftRNIC)
	if !r.only {
		r.Measured /= median(r.Yardstick)
		r.Best /= best(r.Yardstick)
	}
	if r.Met = r.Measured >= r.Goal; r.AtMost {
		r.Met = r.Measured <= r.Goal
	}
}

func median(samples []float64) float64 {
	s := slices.Sorted(slices.Values(samples))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

func (r *row) goalText() string {
	text := "≥ "
	if r.AtMost {
		text = "≤ "
	}
	text += strconv.FormatFloat(r.Goal, 'g', -1, 64)
	if r.only {
		return text + " " + r.Unit
	}
	return text + " of " + r.Against
}

func (r *row) measuredText() string {
	if len(r.SoftRNIC) == 0 {
		return ""
	}
	text := fmt.Sprintf("%.2f", r.Measured)
	if len(r.Runs) > 1 {
		text += fmt.Sprintf(" of %.2f–%.2f", slices.Min(r.Runs), slices.Max(r.Runs))
	}
	return text
}

func (r *row) bestText() string {
	if len(r.SoftRNIC) == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", r.Best)
}

func (r *row) floorText() string {
	if len(r.Floor) == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f: %s", median(r.Floor), r.FloorOf)
}

// worse reports whether r is further from its goal than o, which has the same goal.
func (r *row) worse(o *row) bool {
	if r.verdict() == "failed" || o.verdict() == "failed" {
		return r.verdict() == "failed"
	}
	return r.Measured != o.Measured && r.AtMost == (r.Measured > o.Measured)
}

func (r *row) subjectText() string { return figure(r.SoftRNIC, r.Unit) }

func (r *row) yardstickText() string {
	if r.only {
		return ""
	}
	return figure(r.Yardstick, r.Unit)
}

// figure returns the median with its unit.
func figure(samples []float64, unit string) string {
	if len(samples) == 0 {
		return ""
	}
	return fmt.Sprintf("%.3g %s", median(samples), unit)
}

func (r *row) verdict() string {
	switch {
	case r.Failed != "":
		return "failed"
	case len(r.SoftRNIC) == 0:
		return ""
	case r.Met:
		return "met"
	}
	return "missed"
}

// experiment fills some rows: each round measures SoftRNIC and its yardstick once.
type experiment struct {
	rows  []*row
	round func(ctx context.Context, l *lab) error
}

// run runs an experiment. A failure takes the place of the verdict and does not stop other
// experiments.
func (e *experiment) run(ctx context.Context, l *lab, rounds int, progress io.Writer) {
	began := time.Now()
	var before []row
	for _, r := range e.rows {
		before = append(before, r.begin())
	}
	for i := range rounds {
		l.profiling = i == rounds-1
		if err := e.round(ctx, l); err != nil {
			fmt.Fprintf(progress, "%s: round %d: %v\n", e.rows[0].What, i+1, err)
			for _, r := range e.rows {
				r.Failed = err.Error()
			}
			break
		}
	}
	for i, r := range e.rows {
		r.end(&before[i])
		fmt.Fprintf(progress, "%s: %.2f (%s), %s\n", r.What, r.Runs[len(r.Runs)-1], r.goalText(), r.verdict())
	}
	fmt.Fprintf(progress, "  in %v\n", time.Since(began).Round(time.Second/10))
}
