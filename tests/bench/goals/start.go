//go:build linux

package main

// The start of a program under softrnic run: its time, the processor time of all processes, and the
// memory of the largest.

import "context"

// starts are the starts of a sample. The first ones read the files.
const starts = 5

// ofStart measures the median start of a program under softrnic run. A hub is there, as after the
// first program. Its processor time does not count.
func ofStart(what string, program func(l *lab) []string) *experiment {
	what = "softrnic run, " + what + ", "
	rows := []*row{
		{What: what + "time", Goal: 50, AtMost: true, Unit: "ms", only: true},
		{What: what + "processor time of all processes", Goal: 40, AtMost: true, Unit: "ms", only: true},
		{What: what + "memory of the largest process", Goal: 20, AtMost: true, Unit: "MB", only: true},
	}
	return &experiment{rows, func(ctx context.Context, l *lab) error {
		if err := l.dropin(ctx); err != nil {
			return err
		}
		l.env = []string{"SOFTRNIC_LINK=kernel:lo", "SOFTRNIC_ADDR=127.0.0.1/8"}
		defer func() { l.env = nil }()
		return l.withHub(ctx, l.inside, both, func() error {
			var samples [3][]float64
			for range starts {
				one, err := l.startOnce(ctx, append([]string{"run", "--libs", l.libs, "--"}, program(l)...))
				if err != nil {
					return err
				}
				for i, v := range one {
					samples[i] = append(samples[i], v)
				}
			}
			for i, r := range rows {
				r.add(median(samples[i]))
			}
			return nil
		})
	}}
}

// startOnce runs a softrnic until it ends. It returns the milliseconds, those of processors, and
// the megabytes of the largest process.
func (l *lab) startOnce(ctx context.Context, args []string) (r [3]float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	var y struct {
		Took   float64 `json:"took_ms"`
		CPU    float64 `json:"cpu_ms"`
		Memory float64 `json:"memory_mb"`
	}
	err = l.output(ctx, both, &y, l.yard, append([]string{"start", l.softrnic}, args...)...)
	return [3]float64{y.Took, y.CPU, y.Memory}, err
}
