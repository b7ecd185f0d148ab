package verbs

import (
	"math"
	"time"
)

// CQModeration makes events rarer (ibv_moderate_cq): of an armed CQ one comes when Count completions have come that
// would each have made one, or Period after the first of them, whichever is earlier. Count 0 or 1 and Period 0 mean
// without that condition; with neither, each makes an event at once.
type CQModeration struct {
	Count  int
	Period time.Duration
}

// The largest values of CQModeration (ibv_cq_moderation_caps).
const (
	MaxCQCount  = math.MaxUint16
	MaxCQPeriod = math.MaxUint16 * time.Microsecond
)

// Modify sets the CQ's moderation (ibv_modify_cq).
func (cq *CQ) Modify(m CQModeration) error {
	const op = "modify CQ"
	if err := checkRange(op, "Count", m.Count, 0, MaxCQCount); err != nil {
		return err
	}
	if m.Period < 0 || m.Period > MaxCQPeriod {
		return Errorf(ErrInvalid, op, "Period %v is not in 0–%v", m.Period, MaxCQPeriod)
	}
	if cq.channel == nil {
		return Errorf(ErrInvalid, op, "the CQ has no completion channel, and so no events")
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if err := cq.check(op); err != nil {
		return err
	}
	cq.events.limits = m
	if cq.armed.Load() != disarmed && cq.events.count > 0 { // nothing waits for a limit that is gone
		cq.makeEvent()
	}
	return nil
}

// moderation is how far a CQ is from its next event; guarded by CQ.mu.
type moderation struct {
	limits CQModeration
	count  int         // completions since the event was asked for
	timer  *time.Timer // nil until the first Period
}

func (m *moderation) stop() {
	if m.timer != nil {
		m.timer.Stop()
	}
}

// eventDue makes the event that a completion calls for, unless it can wait.
func (cq *CQ) eventDue() {
	m := &cq.events
	m.count++
	byCount, byTime := m.limits.Count > 1, m.limits.Period > 0
	if !byCount && !byTime || byCount && m.count >= m.limits.Count {
		cq.makeEvent()
		return
	}
	switch {
	case !byTime || m.count > 1:
	case m.timer == nil:
		m.timer = time.AfterFunc(m.limits.Period, cq.periodOver)
	default:
		m.timer.Reset(m.limits.Period)
	}
}

func (cq *CQ) periodOver() {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.armed.Load() != disarmed && cq.events.count > 0 {
		cq.makeEvent()
	}
}

func (cq *CQ) makeEvent() {
	cq.events.stop()
	cq.events.count = 0
	cq.armed.Store(disarmed)
	cq.channel.notify(cq)
}
