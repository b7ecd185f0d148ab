package impair

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Parse reads a configuration: settings separated by commas, such as
//
//	loss=1%,reorder=0.5%,delay=1ms±200us,seed=7
//	in.rate=100mbit,out.burst=1%/20%,drop=read-response:3
//
// The settings are below. A setting applies to both directions, or with the prefix in. or out. to
// one:
//
//	loss=P dup=P corrupt=P reorder=P   probability, 0.01 or 1%
//	burst=P/P                          Gilbert–Elliott: into and out of the bad state
//	delay=D delay=D±D delay=D+-D       time such as 200us, with jitter
//	hold=D                             delay of a reordered packet; the default is 1ms
//	rate=N                             bits per second, with kbit, mbit or gbit
//	limit=N                            packets held at a time
//	queue=N                            bytes that may wait for the rate, with kb or mb
//	ecn=N ecn=N/N                      mark ECN-capable packets if the queue has N bytes: all, or
//	                                   a share that grows up to the second number
//	drop=C dup=C corrupt=C reorder=C   a rule for a class of packets ([Class]): C is class for
//	                                   the first of them, class:3 for the third, class:3-5,
//	                                   class:3- for the third and all later ones, class:* for all
//	seed=N                             for both directions; the default is 0
//	none                               no impairment; settings before it do not apply
//
// If a setting is given twice, the later one applies; rules accumulate.
func Parse(text string) (Config, error) {
	var c Config
	for field := range strings.SplitSeq(text, ",") {
		field = strings.TrimSpace(field)
		switch field {
		case "":
			continue
		case "none":
			c = Config{}
			continue
		}
		if err := c.set(field); err != nil {
			return Config{}, fmt.Errorf("impair: %s: %w", field, err)
		}
	}
	for _, d := range []*Direction{&c.In, &c.Out} {
		if err := d.check(); err != nil {
			return Config{}, fmt.Errorf("impair: %s: %w", text, err)
		}
	}
	return c, nil
}

func (c *Config) set(field string) error {
	key, value, ok := strings.Cut(field, "=")
	if !ok || value == "" {
		return fmt.Errorf("write it as setting=value")
	}
	if key == "seed" {
		n, err := strconv.ParseUint(value, 0, 64)
		if err != nil {
			return fmt.Errorf("%q is not a number from 0 to 2^64-1", value)
		}
		c.Seed = n
		return nil
	}
	to := []*Direction{&c.In, &c.Out}
	if k, ok := strings.CutPrefix(key, "in."); ok {
		key, to = k, to[:1]
	} else if k, ok := strings.CutPrefix(key, "out."); ok {
		key, to = k, to[1:]
	}
	for _, d := range to {
		if err := d.set(key, value); err != nil {
			return err
		}
	}
	return nil
}

func (d *Direction) set(key, value string) (err error) {
	switch key {
	case "loss":
		d.Loss, err = probability(value)
	case "dup":
		return d.chanceOrRule(&d.Duplicate, Duplicate, value)
	case "corrupt":
		return d.chanceOrRule(&d.Corrupt, Corrupt, value)
	case "reorder":
		return d.chanceOrRule(&d.Reorder, Reorder, value)
	case "drop":
		return d.addRule(Drop, value)
	case "burst":
		enter, leave, ok := strings.Cut(value, "/")
		if !ok {
			return fmt.Errorf("write two probabilities, such as 1%%/20%%")
		}
		if d.Burst.Enter, err = probability(enter); err == nil {
			d.Burst.Leave, err = probability(leave)
		}
	case "delay":
		delay, jitter, ok := strings.Cut(strings.Replace(value, "+-", "±", 1), "±")
		if d.Delay, err = duration(delay); err == nil && ok {
			d.Jitter, err = duration(jitter)
		}
	case "hold":
		d.Hold, err = duration(value)
	case "rate":
		d.Rate, err = rate(value)
	case "limit":
		if d.Limit, err = strconv.Atoi(value); err != nil || d.Limit < 1 {
			return fmt.Errorf("%q is not a number of packets, 1 or more", value)
		}
	case "queue":
		if d.Queue, err = size(value); err == nil && d.Queue == 0 {
			return fmt.Errorf("a queue of 0 bytes lets nothing pass: omit it for no bound")
		}
	case "ecn":
		from, to, ok := strings.Cut(value, "/")
		if d.ECN.Min, err = size(from); err == nil && ok {
			d.ECN.Max, err = size(to)
		}
	default:
		return fmt.Errorf("unknown setting %q: one of "+
			"loss, burst, dup, corrupt, reorder, hold, delay, rate, limit, queue, ecn, drop, seed", key)
	}
	return err
}

// chanceOrRule parses a probability or a rule. Classes begin with a letter, probabilities do not.
func (d *Direction) chanceOrRule(p *float64, a Action, value string) (err error) {
	if c := value[0]; c >= 'a' && c <= 'z' {
		return d.addRule(a, value)
	}
	*p, err = probability(value)
	return err
}

func (d *Direction) addRule(a Action, value string) error {
	class, which, ok := strings.Cut(value, ":")
	match, err := Class(class)
	if err != nil {
		return err
	}
	r := Rule{Match: match, Nth: 1, Count: 1, Action: a}
	switch {
	case ok && which == "*":
		r.Count = -1
	case ok:
		from, to, span := strings.Cut(which, "-")
		n, err := strconv.Atoi(from)
		if err != nil || n < 1 {
			return fmt.Errorf("%q: packets count from 1: write %s:3, %s:3-5, %s:3- or %s:*", which, class, class, class, class)
		}
		r.Nth = n
		if span && to == "" {
			r.Count = -1
		} else if span {
			m, err := strconv.Atoi(to)
			if err != nil || m < n {
				return fmt.Errorf("%q: the last packet must be a number not below the first", which)
			}
			r.Count = m - n + 1
		}
	}
	d.Rules = append(d.Rules, r)
	return nil
}

func probability(s string) (float64, error) {
	num, percent := strings.CutSuffix(s, "%")
	p, err := strconv.ParseFloat(num, 64)
	if percent {
		p /= 100
	}
	if err != nil || !(p >= 0 && p <= 1) {
		return 0, fmt.Errorf("%q is not a probability: write 0 to 1, or 0%% to 100%%", s)
	}
	return p, nil
}

func duration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a time: write it as 200us, 1ms or 2s", s)
	}
	return d, nil
}

func rate(s string) (int64, error) {
	num, unit := s, 1.0
	for _, u := range []struct {
		suffix string
		factor float64
	}{{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"bit", 1}} {
		if n, ok := strings.CutSuffix(s, u.suffix); ok {
			num, unit = n, u.factor
			break
		}
	}
	f, err := strconv.ParseFloat(num, 64)
	if f *= unit; err != nil || !(f >= 1 && f <= 1e15) {
		return 0, fmt.Errorf("%q is not a rate: write bits a second, such as 100mbit", s)
	}
	return int64(f), nil
}

func size(s string) (int, error) {
	num, unit := s, 1
	for _, u := range []struct {
		suffix string
		factor int
	}{{"kb", 1e3}, {"mb", 1e6}, {"b", 1}} {
		if n, ok := strings.CutSuffix(s, u.suffix); ok {
			num, unit = n, u.factor
			break
		}
	}
	n, err := strconv.Atoi(num)
	if err != nil || n < 0 || n > 1<<30/unit {
		return 0, fmt.Errorf("%q is not a number of bytes, at most 1 GB: write it as 64000 or 64kb", s)
	}
	return n * unit, nil
}
