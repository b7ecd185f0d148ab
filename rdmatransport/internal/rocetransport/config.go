package rocetransport

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/roce"
)

// maxQueued is the largest ByDelay.Queued: all packets of the largest window.
const maxQueued = send.MaxWindow >> 10

// CheckConfig returns an error that names the field if a value is out of bounds.
func CheckConfig(c *roce.Config) error {
	if w := c.Window; w != 0 && (w < send.LeastWindow || w > send.MaxWindow || w&(w-1) != 0) {
		return fmt.Errorf("%s %d: must be a power of two from %d to %d, or 0 for %d", "Window", w, send.LeastWindow, send.MaxWindow,
			send.DefaultWindow)
	}
	if err := within("TrimmedDSCP", c.TrimmedDSCP, 63); err != nil {
		return err
	}
	if d := c.ByDelay; d != nil {
		if err := within("ByDelay.Queued", d.Queued, maxQueued); err != nil {
			return err
		}
	}
	d := c.DCQCN
	if d == nil {
		return nil
	}
	const anyRate, anyTime, alpha = int64(math.MaxInt64), time.Hour, 1024
	if err := cmp.Or(
		within("DCQCN.RPGMaxRate", d.RPGMaxRate, anyRate),
		within("DCQCN.RPGMinRate", d.RPGMinRate, anyRate),
		within("DCQCN.RPGAIRate", d.RPGAIRate, anyRate),
		within("DCQCN.RPGHAIRate", d.RPGHAIRate, anyRate),
		within("DCQCN.RPGTimeReset", d.RPGTimeReset, anyTime),
		within("DCQCN.RPGByteReset", d.RPGByteReset, 1<<30),
		within("DCQCN.RPGThreshold", d.RPGThreshold, 1<<30),
		within("DCQCN.RPGGD", d.RPGGD, 63),
		within("DCQCN.RPGMinDecFac", d.RPGMinDecFac, 100),
		within("DCQCN.DCETCPG", d.DCETCPG, alpha),
		within("DCQCN.DCETCPRTT", d.DCETCPRTT, anyTime),
		within("DCQCN.RateReduceMonitorPeriod", d.RateReduceMonitorPeriod, anyTime),
		within("DCQCN.InitialAlphaValue", d.InitialAlphaValue, alpha),
		within("DCQCN.RateToSetOnFirstCNP", d.RateToSetOnFirstCNP, anyRate),
		within("DCQCN.CNPDSCP", d.CNPDSCP, 63),
		within("DCQCN.CNP802PPrio", d.CNP802PPrio, 7),
		within("DCQCN.MinTimeBetweenCNPs", d.MinTimeBetweenCNPs, anyTime),
	); err != nil {
		return err
	}
	switch e := withDefaults(*d); {
	case e.RPGMinRate <= e.RPGMaxRate:
		return nil
	case d.RPGMinRate != 0:
		return fmt.Errorf("DCQCN.RPGMinRate %d: must be at most RPGMaxRate, %d", e.RPGMinRate, e.RPGMaxRate)
	default:
		return fmt.Errorf("DCQCN.RPGMaxRate %d: must be at least RPGMinRate, %d", e.RPGMaxRate, e.RPGMinRate)
	}
}

// within returns an error if the value of a field is not 0, for its default, to most.
func within[T int | int64 | uint8 | time.Duration](field string, v, most T) error {
	if v < 0 || v > most {
		return fmt.Errorf("%s %v: must be %v to %v, or 0 for the default", field, v, T(1), most)
	}
	return nil
}
