package fabric

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// distribution is a distribution of sizes, linear between its points.
type distribution []struct{ bytes, p float64 }

// readDistribution reads bytes and cumulative probabilities, a pair in each line.
func readDistribution(in io.Reader) (d distribution, err error) {
	err = readTable(in, 2, func(row []string) error {
		bytes, err := strconv.ParseFloat(row[0], 64)
		if err != nil || !(bytes >= 0 && bytes <= 1<<44) {
			return fmt.Errorf("%q is no number of bytes", row[0])
		}
		p, err := strconv.ParseFloat(row[1], 64)
		if err != nil || !(p >= 0 && p <= 1) {
			return fmt.Errorf("%q is no probability from 0 to 1", row[1])
		}
		if n := len(d); n > 0 && (bytes < d[n-1].bytes || p < d[n-1].p) {
			return errors.New("bytes and probability must not be less than in the line before")
		}
		d = append(d, struct{ bytes, p float64 }{bytes, p})
		return nil
	})
	if err == nil && (len(d) == 0 || d[len(d)-1].p != 1) {
		err = errors.New("the last cumulative probability must be 1")
	}
	return d, err
}

// mean returns the mean size in bytes, at least 1, as a flow has a byte. Here and below,
// conversions of products keep a compiler from joining them with a sum: a seed gives the same flows
// on all processors.
func (d distribution) mean() float64 {
	sum := d[0].bytes * d[0].p
	for i := 1; i < len(d); i++ {
		sum += float64((d[i].bytes + d[i-1].bytes) / 2 * (d[i].p - d[i-1].p))
	}
	return max(1, sum)
}

// draw returns a random size.
func (d distribution) draw(random *rand.Rand) int64 {
	p := random.Float64()
	i, _ := slices.BinarySearchFunc(d, p, func(e struct{ bytes, p float64 }, p float64) int {
		if e.p < p {
			return -1
		}
		return 1
	})
	switch {
	case i == 0:
		return max(1, int64(d[0].bytes))
	case i == len(d): // not reached: p is less than 1
		i--
	}
	a, b := d[i-1], d[i]
	return max(1, int64(a.bytes+(b.bytes-a.bytes)*(p-a.p)/(b.p-a.p)))
}

// transfer is a line of a trace.
type transfer struct {
	start    time.Duration
	from, to int
	bytes    int64
}

// readTrace reads the start, the index of the source and of the destination, and the bytes of flows
// between n hosts.
func readTrace(in io.Reader, n int) (all []transfer, err error) {
	err = readTable(in, 4, func(row []string) error {
		start, err := parseDuration(row[0])
		if err != nil {
			return err
		}
		var ends [2]int
		for i := range ends {
			if ends[i], err = strconv.Atoi(row[1+i]); err != nil || ends[i] < 0 || ends[i] >= n {
				return fmt.Errorf("%q is no host: there are hosts 0 to %d", row[1+i], n-1)
			}
		}
		bytes, err := strconv.ParseInt(row[3], 10, 64)
		switch {
		case err != nil || bytes < 1 || bytes > 1<<44:
			return fmt.Errorf("%q is no number of bytes from 1 on", row[3])
		case ends[0] == ends[1]:
			return fmt.Errorf("the flow is from host %d to itself", ends[0])
		case len(all) == maxFlows:
			return fmt.Errorf("there are more than %d flows", maxFlows)
		}
		all = append(all, transfer{start, ends[0], ends[1], bytes})
		return nil
	})
	return all, err
}

// readTable reads a CSV file. Lines that begin with # are comments, and the first line may have
// names: its first field is then no number.
func readTable(in io.Reader, fields int, do func(row []string) error) error {
	r := csv.NewReader(in)
	r.Comment, r.FieldsPerRecord, r.TrimLeadingSpace, r.ReuseRecord = '#', fields, true, true
	for first := true; ; first = false {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if letter := (row[0] + " ")[0] | 0x20; first && letter >= 'a' && letter <= 'z' {
			continue
		}
		if err := do(row); err != nil {
			line, _ := r.FieldPos(0)
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
}

// maxTable is the size of the largest CSV file.
const maxTable = 256 << 20

// open opens a file that the configuration names.
func (c *config) open(name string) (*os.File, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(c.dir, name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() > maxTable {
		err = fmt.Errorf("%s has %d bytes: it must have at most %d", name, info.Size(), maxTable)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// exponential returns a random number with an exponential distribution and the mean 1, by
// comparisons only (von Neumann 1951): math.Log and math.Exp differ among processors.
func exponential(random *rand.Rand) float64 {
	for whole := 0.0; ; whole++ {
		first := random.Float64()
		least, odd := first, true // of those that are less than the one before, the first included
		for next := random.Float64(); next < least; next = random.Float64() {
			least, odd = next, !odd
		}
		if odd {
			return whole + first
		}
	}
}

// poisson has hosts that begin flows at random times, to random others.
func (r *run) poisson(load int, w *workload, hosts []int) error {
	if err := runChecks([]check{{"load", w.Load, 1e-6, 10}}); err != nil {
		return err
	}
	file, err := r.cfg.open(w.Sizes)
	if err != nil {
		return fmt.Errorf("sizes: %w", err)
	}
	defer file.Close()
	sizes, err := readDistribution(file)
	if err != nil {
		return fmt.Errorf("sizes: %s: %w", w.Sizes, err)
	}
	between := sizes.mean() * 8 / (w.Load * float64(r.cfg.Link.Rate)) // seconds
	if n := float64(len(hosts)) * time.Duration(w.Duration).Seconds() / between; n > maxFlows {
		return fmt.Errorf("duration: it has about %.0f flows: there must be at most %d", n, maxFlows)
	}
	for i, from := range hosts {
		random := r.random(load, i)
		next := func() float64 { return float64(exponential(random) * between) }
		for t := next(); t < time.Duration(w.Duration).Seconds(); t += next() {
			to := hosts[(i+1+random.IntN(len(hosts)-1))%len(hosts)]
			f := &flow{load: load, from: from, to: to, bytes: sizes.draw(random)}
			r.expect(time.Duration(w.Start)+time.Duration(t*1e9), f)
			r.planned++
		}
	}
	return nil
}

// trace has the flows of a file.
func (r *run) trace(load int, w *workload, _ []int) error {
	file, err := r.cfg.open(w.File)
	if err != nil {
		return fmt.Errorf("file: %w", err)
	}
	defer file.Close()
	all, err := readTrace(file, len(r.nodes))
	if err != nil {
		return fmt.Errorf("file: %s: %w", w.File, err)
	}
	for _, t := range all {
		r.expect(time.Duration(w.Start)+t.start, &flow{load: load, from: t.from, to: t.to, bytes: t.bytes})
	}
	r.planned += len(all)
	return nil
}
