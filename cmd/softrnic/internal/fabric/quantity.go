package fabric

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Values with units in a file: a text, or a number in the unit that the comment says.
type (
	size     int64         // bytes
	rate     float64       // bit/s
	duration time.Duration // seconds
)

// UnmarshalTOML implements toml.Unmarshaler: 4096, "64KiB", "1.5MB".
func (s *size) UnmarshalTOML(v any) error {
	f, err := number(v, "B", map[string]float64{"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
		"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40})
	if err != nil || f != math.Trunc(f) || f < 0 || f > 1<<50 {
		return fmt.Errorf("%v is no size: it must be like 4096, \"64KiB\" or \"1.5MB\"", quoted(v))
	}
	*s = size(f)
	return nil
}

// UnmarshalTOML implements toml.Unmarshaler: 1e9, "100G", "2.5Gbit/s".
func (r *rate) UnmarshalTOML(v any) error {
	if s, ok := v.(string); ok {
		for _, unit := range []string{"bit/s", "bps", "b/s"} {
			s = strings.TrimSuffix(s, unit)
		}
		v = s
	}
	f, err := number(v, "", map[string]float64{"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12})
	if err != nil || !(f > 0 && f <= 1e15) {
		return fmt.Errorf("%v is no rate: it must be like 1e9, \"100G\" or \"2.5Gbit/s\"", quoted(v))
	}
	*r = rate(f)
	return nil
}

// UnmarshalTOML implements toml.Unmarshaler: 0.5, "10us", "1.5ms".
func (d *duration) UnmarshalTOML(v any) error {
	t, err := parseDuration(v)
	*d = duration(t)
	return err
}

// maxTime is the latest time of a run.
const maxTime = 24 * time.Hour

func parseDuration(v any) (time.Duration, error) {
	wrong := fmt.Errorf("%v is no time: it must be like \"10us\" or \"1.5ms\", or a number of seconds, up to %v", quoted(v), maxTime)
	if s, ok := v.(string); ok {
		if d, err := time.ParseDuration(s); err == nil {
			if d < 0 || d > maxTime {
				return 0, wrong
			}
			return d, nil
		}
	}
	f, err := number(v, "", nil)
	if err != nil || !(f >= 0 && f <= maxTime.Seconds()) {
		return 0, wrong
	}
	return time.Duration(math.Round(f * 1e9)), nil
}

// number returns the value of a number, or of a text with a unit.
func number(v any, unit string, prefixes map[string]float64) (float64, error) {
	switch v := v.(type) {
	case int64:
		return float64(v), nil
	case float64:
		return v, nil
	case string:
		s := strings.TrimSpace(strings.TrimSuffix(v, unit))
		factor := 1.0
		if at := strings.LastIndexAny(s, "0123456789.") + 1; at < len(s) {
			f, ok := prefixes[strings.TrimSpace(s[at:])]
			if !ok {
				return 0, strconv.ErrSyntax
			}
			factor, s = f, s[:at]
		}
		f, err := strconv.ParseFloat(s, 64)
		return f * factor, err
	}
	return 0, strconv.ErrSyntax
}

func quoted(v any) string {
	if s, ok := v.(string); ok {
		return strconv.Quote(s)
	}
	return fmt.Sprint(v)
}

// hostSet says which hosts take part: the first so many, or a list of indices.
type hostSet struct {
	first int
	list  []int
	given bool
}

// UnmarshalTOML implements toml.Unmarshaler: 8, or [0, 3, 5].
func (h *hostSet) UnmarshalTOML(v any) error {
	h.given = true
	switch v := v.(type) {
	case int64:
		if v < 1 || v > maxHosts {
			return fmt.Errorf("%d hosts: there must be 1 to %d", v, maxHosts)
		}
		h.first = int(v)
		return nil
	case []any:
		for _, e := range v {
			n, ok := e.(int64)
			if !ok || n < 0 || n >= maxHosts {
				return fmt.Errorf("%v is no host: it must be an index from 0 on", quoted(e))
			}
			h.list = append(h.list, int(n))
		}
		return nil
	}
	return fmt.Errorf("%v are no hosts: it must be a number of hosts, or a list of indices such as [0, 3, 5]", quoted(v))
}

// hosts returns the indices, of n hosts. otherwise is the answer if the file says nothing.
func (h *hostSet) hosts(n int, otherwise []int) ([]int, error) {
	switch {
	case !h.given:
		return otherwise, nil
	case h.list == nil && h.first > n:
		return nil, fmt.Errorf("%d hosts: the topology has %d", h.first, n)
	case h.list == nil:
		return upTo(h.first), nil
	}
	seen := map[int]bool{}
	for _, i := range h.list {
		switch {
		case i >= n:
			return nil, fmt.Errorf("host %d: the topology has %d hosts, from 0 on", i, n)
		case seen[i]:
			return nil, fmt.Errorf("host %d is there twice", i)
		}
		seen[i] = true
	}
	return h.list, nil
}

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}
