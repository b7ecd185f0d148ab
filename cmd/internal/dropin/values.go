package dropin

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/softrnic/softrnic/verbs"
)

// gigabits, lanes, transports, level and port are values of Settings. The errors of their
// UnmarshalText methods name the value, and what is allowed.
type (
	gigabits   float64 // per second
	lanes      int
	transports []verbs.Transport
	level      slog.Level
	port       uint16
)

func (g *gigabits) UnmarshalText(text []byte) error {
	n, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return fmt.Errorf("%q is not a rate: must be a number of Gbit/s, such as 100", text)
	}
	*g = gigabits(n)
	return new(verbs.PortAttr).SetRate(n, 0)
}

func (l *lanes) UnmarshalText(text []byte) error {
	n, err := strconv.Atoi(string(text))
	if *l = lanes(n); err != nil || !slices.Contains([]int{1, 2, 4, 8, 12}, n) {
		return fmt.Errorf("%q is not a number of lanes: must be 1, 2, 4, 8 or 12", text)
	}
	return nil
}

func (t *transports) UnmarshalText(text []byte) error {
	for name := range strings.SplitSeq(string(text), ",") {
		one, ok := map[string]verbs.Transport{"roce": verbs.RoCEv2, "iwarp": verbs.IWARP}[strings.TrimSpace(name)]
		if !ok || slices.Contains(*t, one) {
			return errors.New("must be roce, iwarp, or both, separated by a comma")
		}
		*t = append(*t, one)
	}
	return nil
}

func (l *level) UnmarshalText(text []byte) error {
	if (*slog.Level)(l).UnmarshalText(text) != nil {
		return fmt.Errorf("%q is not a level: must be debug, info, warn or error", text)
	}
	return nil
}

func (p *port) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 10, 16)
	if *p = port(n); err != nil || n == 0 {
		return fmt.Errorf("%q is not a port: must be 1 to 65535", text)
	}
	return nil
}
