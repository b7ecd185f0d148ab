package verbs

import (
	"math"
	"time"
)

// CQModeration reduces the number of completion events (ibv_moderate_cq). An armed CQ generates its
// event after Count completions that request one, or Period after the first of them, whichever is
// earlier. Count 0 or 1 disables the first condition, Period 0 the second. With both disabled, the
// first completion generates the event.
type CQModeration struct {
	Count  int
	Period time.Duration
}

// The largest values of CQModeration (ibv_cq_moderation_caps).
const (
	maxCQCount  = math.MaxUint16
	maxCQPeriod = math.MaxUint16 * time.Microsecond
)

// Modify sets the CQ's moderation (ibv_modify_cq).
func (cq *CQ) Modify(m CQModeration) error {
	if err := cq.dev.fault("modify_cq"); err != nil {
		return err
	}
	const op = "modify CQ"
	if err := checkRange(op, "Count", m.Count, 0, maxCQCount); err != nil {
		return err
	}
	if m.Period < 0 || m.Period > maxCQPeriod {
		return Errorf(ErrInvalid, op, "Period %v is not in 0–%v", m.Period, maxCQPeriod)
	}
	if cq.channel == nil {
		return Errorf(ErrInvalid, op, "the CQ has no completion channel, and therefore no events")
	}
	defer cq.channel.report() // when mu is unlocked
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if err := cq.check(op); err != nil {
		return err
	}
	cq.moderation.limits = m
	// The new limits may already be reached.
	if cq.armed.Load() != disarmed && cq.moderation.count > 0 {
		cq.generateEvent()
	}
	return nil
}

// moderation is the state of a CQ's event moderation, protected by CQ.mu.
type moderation struct {
	limits CQModeration
	count  int   // completions that request an event, since the CQ was armed
	timer  Timer // nil until the first Period
}

func (m *moderation) stop() {
	if m.timer != nil {
		m.timer.Stop()
	}
}

// reached reports whether the completions counted so far generate an event now. Without limits one
// completion does.
func (m *moderation) reached() bool {
	moderated := m.limits.Count > 1 || m.limits.Period > 0
	return !moderated || m.limits.Count > 1 && m.count >= m.limits.Count
}

// requestEvent counts a completion that requests an event, and generates the event unless
// moderation delays it.
func (cq *CQ) requestEvent() {
	m := &cq.moderation
	m.count++
	switch {
	case m.reached():
		cq.generateEvent()
	case m.count > 1 || m.limits.Period == 0: // the period has already started, or there is none
	case m.timer == nil:
		m.timer = cq.dev.clock.AfterFunc(m.limits.Period, cq.periodExpired)
	default:
		m.timer.Reset(m.limits.Period)
	}
}

func (cq *CQ) periodExpired() {
	defer cq.channel.report() // when mu is unlocked
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.armed.Load() != disarmed && cq.moderation.count > 0 {
		cq.generateEvent()
	}
}

// generateEvent disarms the CQ and adds an event to its channel.
func (cq *CQ) generateEvent() {
	cq.moderation.stop()
	cq.moderation.count = 0
	cq.armed.Store(disarmed)
	cq.channel.notify(cq)
}
