package rocetransport

// DCQCN's reaction point. A connection's rate falls with each CNP of its peer, and rises again
// without CNPs. (Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015, §3;
// the rate increase is that of IEEE 802.1Qau)

import (
	"cmp"
	"math"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce"
)

// withDefaults fills in unset fields.
func withDefaults(c roce.DCQCN) *roce.DCQCN {
	c.RPGMaxRate = cmp.Or(c.RPGMaxRate, 40e9)
	c.RPGMinRate = cmp.Or(c.RPGMinRate, 1e6)
	c.RPGAIRate = cmp.Or(c.RPGAIRate, 5e6)
	c.RPGHAIRate = cmp.Or(c.RPGHAIRate, 50e6)
	c.RPGTimeReset = cmp.Or(c.RPGTimeReset, 300*time.Microsecond)
	c.RPGByteReset = cmp.Or(c.RPGByteReset, 32767)
	c.RPGThreshold = cmp.Or(c.RPGThreshold, 1)
	c.RPGGD = cmp.Or(c.RPGGD, 11)
	c.RPGMinDecFac = cmp.Or(c.RPGMinDecFac, 50)
	c.DCETCPG = cmp.Or(c.DCETCPG, 4)
	c.DCETCPRTT = cmp.Or(c.DCETCPRTT, 55*time.Microsecond)
	c.RateReduceMonitorPeriod = cmp.Or(c.RateReduceMonitorPeriod, 50*time.Microsecond)
	c.InitialAlphaValue = cmp.Or(c.InitialAlphaValue, 1023)
	c.CNPDSCP = cmp.Or(c.CNPDSCP, 48)
	c.CNP802PPrio = cmp.Or(c.CNP802PPrio, 6)
	c.MinTimeBetweenCNPs = cmp.Or(c.MinTimeBetweenCNPs, 50*time.Microsecond)
	return &c
}

// reaction is a connection's reaction point. Its timers are evaluated when the rate is needed.
type reaction struct {
	cfg     *roce.DCQCN
	current float64 // rate in bits per second
	target  float64 // target rate of the recovery
	alpha   float64 // estimate of the congestion, 0 to 1

	times, bytes int           // increases by timer and by byte counter since the last decrease
	sent         int           // bytes since the last increase by byte counter
	nextIncrease time.Duration // time of the next increase by timer
	lastDecrease time.Duration // time of the last decrease
	alphaUpdated time.Duration // time of the last update of alpha
}

func newReaction(cfg *roce.DCQCN) *reaction {
	full := float64(cfg.RPGMaxRate)
	return &reaction{cfg: cfg, current: full, target: full}
}

// full reports whether the rate is at its maximum.
func (r *reaction) full() bool { return r.current >= float64(r.cfg.RPGMaxRate) }

// The conversions of products, here and below, keep a compiler from joining them with a sum: a
// simulation takes the same course on all processors.

// onCNP lowers the rate after a CNP. Earlier increases have been made.
func (r *reaction) onCNP(now time.Duration) {
	c := r.cfg
	first := r.full()
	if first {
		r.alpha = float64(c.InitialAlphaValue) / 1024
	} else {
		if now-r.lastDecrease < c.RateReduceMonitorPeriod {
			return
		}
		idlePeriods := (now - r.alphaUpdated) / c.DCETCPRTT
		g := float64(c.DCETCPG) / 1024
		r.alpha = float64(r.alpha*math.Pow(1-g, float64(idlePeriods)+1)) + g
	}
	r.alphaUpdated, r.lastDecrease = now, now
	if first || r.times > 0 || r.bytes > 0 {
		r.target = r.current
	}
	r.current *= max(1-math.Ldexp(r.alpha, 10-c.RPGGD), float64(c.RPGMinDecFac)/100)
	if first && c.RateToSetOnFirstCNP > 0 {
		r.current = min(r.current, float64(c.RateToSetOnFirstCNP))
	}
	r.current = max(r.current, float64(c.RPGMinRate))
	r.times, r.bytes, r.sent = 0, 0, 0
	r.nextIncrease = now + c.RPGTimeReset
}

// onTimer makes the increase that is due at nextIncrease.
func (r *reaction) onTimer() {
	r.times++
	r.nextIncrease += r.cfg.RPGTimeReset
	r.increase()
}

// onBytes counts sent bytes, and makes the increase that they cause.
func (r *reaction) onBytes(n int) {
	if r.full() {
		return
	}
	if r.sent += n; r.sent >= r.cfg.RPGByteReset {
		r.sent -= r.cfg.RPGByteReset
		r.bytes++
		r.increase()
	}
}

// increase increases the rate. It begins with fast recovery, then uses additive increase, and hyper
// increase once both counts exceed the threshold.
func (r *reaction) increase() {
	c := r.cfg
	switch past := min(r.times, r.bytes) - c.RPGThreshold; {
	case past > 0:
		r.target += float64(float64(past) * float64(c.RPGHAIRate))
	case max(r.times, r.bytes) > c.RPGThreshold:
		r.target += float64(c.RPGAIRate)
	}
	r.target = min(r.target, float64(c.RPGMaxRate))
	r.current = (r.current + r.target) / 2
	if r.current > 0.999*float64(c.RPGMaxRate) {
		r.current = float64(c.RPGMaxRate)
	}
}
