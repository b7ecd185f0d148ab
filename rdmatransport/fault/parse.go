package fault

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Parse reads rules, separated by semicolons. [Grammar] describes them. The error names the part of
// a rule that is wrong, and what is allowed.
func Parse(text string) (rules []Rule, err error) {
	for part := range strings.SplitSeq(text, ";") {
		part = strings.TrimSpace(part)
		switch part {
		case "":
			continue
		case "none":
			rules = []Rule{{text: part, kind: onNone}}
			continue
		}
		r, err := parseRule(part)
		if err != nil {
			return nil, fmt.Errorf("fault: %s: %w", part, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// kinds are the words before a rule's colon, other than names of calls.
var kinds = map[string]kind{"wc": onCompletion, "event": onEvent, "cq": onCQ, "cm": onCM, "port": onPort, "addr": onAddr,
	"mtu": onMTU, "device": onDevice, "mr": onMR}

// allowed are the selectors of each kind.
var allowed = map[kind]string{onCall: "qp nth seed", onCompletion: "qp opcode nth seed late", onEvent: "qp port after nth late",
	onCQ: "qp after nth", onCM: "reason nth seed after late", onPort: "port after nth for", onAddr: "port after nth", onMTU: "port after nth",
	onDevice: "after nth", onMR: "lkey after nth"}

func parseRule(text string) (Rule, error) {
	r := Rule{text: text, first: 1, last: 1}
	i := strings.LastIndexByte(text, '=')
	if i < 0 || i == len(text)-1 {
		return r, errors.New("write it as WHAT=EFFECT, such as reg_mr=ENOMEM")
	}
	left, effect := text[:i], text[i+1:]
	what, list, _ := strings.Cut(left, ":")
	what = strings.TrimPrefix(what, "ibv_")
	var isKind bool
	if r.kind, isKind = kinds[what]; !isKind {
		r.kind, r.call = onCall, what
		if calls[what] == "" {
			return r, fmt.Errorf("%q is neither a call nor one of %s: calls are %s", what, names(kinds), strings.Join(Calls(), ", "))
		}
	}
	if list != "" {
		for s := range strings.SplitSeq(list, ",") {
			if err := r.selectBy(s); err != nil {
				return r, err
			}
		}
	}
	if !r.counted() {
		return r, r.setEffect(effect)
	}
	effect, which, ok := strings.Cut(effect, ":")
	if ok && r.sel.nth != 0 {
		return r, fmt.Errorf("both nth=%d and :%s say which one: leave one out", r.sel.nth, which)
	}
	if r.sel.nth != 0 {
		r.first, r.last = r.sel.nth, r.sel.nth
	}
	if ok {
		if err := r.setWhich(which); err != nil {
			return r, err
		}
	}
	return r, r.setEffect(effect)
}

// counted reports whether a rule counts what it matches: its effect may be followed by a number.
func (r *Rule) counted() bool { return r.kind == onCall || r.kind == onCompletion || r.kind == onCM }

// setWhich parses the part of a rule after its effect.
func (r *Rule) setWhich(s string) error {
	if num, ok := strings.CutSuffix(s, "%"); ok {
		p, err := strconv.ParseFloat(num, 64)
		if err != nil || !(p > 0 && p <= 100) {
			return fmt.Errorf("%q is not a share: write above 0%% to 100%%", s)
		}
		r.share, r.last = p/100, forever
		return nil
	}
	if s == "*" {
		r.last = forever
		return nil
	}
	from, to, span := strings.Cut(s, "-")
	n, err := strconv.ParseUint(from, 10, 63)
	if err != nil || n == 0 {
		return fmt.Errorf("%q: the first is 1: write :3, :3-5, :3-, :* or :1%%", s)
	}
	r.first, r.last = n, n
	switch {
	case span && to == "":
		r.last = forever
	case span:
		if r.last, err = strconv.ParseUint(to, 10, 63); err != nil || r.last < n {
			return fmt.Errorf("%q: the last must be a number not below the first", s)
		}
	}
	return nil
}

// states are the names of QP states in rules.
var states = []string{"reset", "init", "rtr", "rts", "sqd", "sqe", "err"}

// selectBy parses a selector.
func (r *Rule) selectBy(text string) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok {
		if r.call == "modify_qp" && slices.Contains(states, text) {
			r.call += ":" + text
			return nil
		}
		return fmt.Errorf("%q is no selector: write one of %s as in qp=5", text, allowed[r.kind])
	}
	if !slices.Contains(strings.Fields(allowed[r.kind]), key) {
		return fmt.Errorf("%q does not apply here: one of %s", key, allowed[r.kind])
	}
	s := &r.sel
	var err error
	number := func(bits int) uint64 {
		var n uint64
		if n, err = strconv.ParseUint(value, 0, bits); err != nil || n == 0 && key != "seed" {
			err = fmt.Errorf("%s: %q is not a number from 1 to 2^%d-1", key, value, bits)
		}
		return n
	}
	switch key {
	case "qp":
		s.qp = uint32(number(24))
	case "port":
		s.port = uint8(number(8))
	case "lkey":
		s.lkey = uint32(number(32))
	case "reason":
		s.reason = int(number(16))
	case "seed":
		s.seed = number(64)
	case "nth":
		s.nth = number(63)
	case "opcode":
		if s.opcode = value; value != recv && opcodes[value] == nil {
			err = fmt.Errorf("opcode: %q is not one of %s, %s", value, names(opcodes), recv)
		}
	case "after":
		s.after, err = duration(value)
	case "late":
		s.late, err = duration(value)
	case "for":
		s.lasts, err = duration(value)
	}
	if err == nil && s.after != 0 && s.nth != 0 {
		err = errors.New("after and nth: leave one out")
	}
	return err
}

// maxTime is the longest time in a rule.
const maxTime = 24 * time.Hour

func duration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 || d > maxTime {
		return 0, fmt.Errorf("%q is not a time up to %v: write it as 200us, 5ms or 2s", s, maxTime)
	}
	return d, nil
}

// asyncEvents are the events that a rule may raise.
var asyncEvents = map[string]verbs.AsyncEventType{}

// cmEvents are the events of rdma_cm that a rule may give.
var cmEvents = map[string]rdmacm.EventType{}

func init() {
	for _, t := range []verbs.AsyncEventType{verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr, verbs.EventCommEst,
		verbs.EventCQErr, verbs.EventSRQLimitReached, verbs.EventGIDChange, verbs.EventClientReregister, verbs.EventDeviceFatal} {
		asyncEvents[t.String()] = t
	}
	for _, t := range []rdmacm.EventType{rdmacm.AddrError, rdmacm.RouteError, rdmacm.ConnectError, rdmacm.Unreachable, rdmacm.Rejected,
		rdmacm.AddrChange, rdmacm.TimewaitExit} {
		cmEvents[strings.TrimPrefix(t.String(), "RDMA_CM_EVENT_")] = t
	}
}

// setEffect parses the effect of a rule whose selectors are known.
func (r *Rule) setEffect(s string) (err error) {
	var ok bool
	switch r.kind {
	case onCall:
		if !slices.Contains(Errnos(r.call), s) {
			return fmt.Errorf("%q is not an errno that %s gives: one of %s", s, r.call, strings.Join(Errnos(r.call), ", "))
		}
		r.errno = errnos[s]
	case onCompletion:
		return r.setCompletion(s)
	case onEvent:
		if r.event, ok = asyncEvents[s]; !ok {
			switch s {
			case "PORT_ERR", "PORT_ACTIVE":
				return fmt.Errorf("%s comes with the state of the port: write port=down or port=up", s)
			}
			return fmt.Errorf("%q is not an event that can be raised: one of %s", s, names(asyncEvents))
		}
		if r.event == verbs.EventDeviceFatal {
			r.kind = onDevice
		}
	case onCQ:
		r.time, err = duration(s)
	case onCM:
		return r.setCM(strings.TrimPrefix(s, "RDMA_CM_EVENT_"))
	case onPort:
		if r.down = s == "down"; !r.down && s != "up" || !r.down && r.sel.lasts != 0 {
			return fmt.Errorf("%q: a port goes down, for a time if for= says so, or up", s)
		}
	case onAddr:
		return r.setAddr(s)
	case onMTU:
		if r.mtu, err = strconv.Atoi(s); err != nil || r.mtu < 576 || r.mtu > 65535 {
			return fmt.Errorf("%q is not an MTU: 576 to 65535 bytes", s)
		}
	case onDevice:
		if s != "gone" {
			return fmt.Errorf("%q: a device can only be gone", s)
		}
	case onMR:
		if s != "revoked" {
			return fmt.Errorf("%q: a region can only be revoked", s)
		}
	}
	return err
}

func (r *Rule) setCompletion(s string) (err error) {
	if s != "" && s[0] >= '0' && s[0] <= '9' {
		if r.sel.late != 0 {
			return errors.New("late= is for a completion that also fails: leave it out")
		}
		r.time, err = duration(s)
		return err
	}
	s = strings.TrimPrefix(s, "IBV_WC_")
	var ok bool
	if r.status, ok = statuses[s]; !ok {
		return fmt.Errorf("%q is neither a time nor one of %s", s, names(statuses))
	}
	if r.sel.opcode == recv && r.status != verbs.WCLocProtErr && r.status != verbs.WCLocLenErr {
		return fmt.Errorf("a receive request does not fail with %s: LOC_PROT_ERR or LOC_LEN_ERR", s)
	}
	if op := r.sel.opcode; op != recv && !anyPossible(r.status, verbs.RC, verbs.RoCEv2, op) {
		return fmt.Errorf("no request with opcode=%s fails with %s", op, s)
	}
	return nil
}

func (r *Rule) setCM(s string) error {
	var ok bool
	if r.cm, ok = cmEvents[s]; !ok {
		return fmt.Errorf("%q is not one of %s", s, names(cmEvents))
	}
	switch {
	case r.cm == rdmacm.TimewaitExit && r.sel.late == 0:
		return errors.New("TIMEWAIT_EXIT can only be late: write cm:late=2s=TIMEWAIT_EXIT")
	case r.cm != rdmacm.TimewaitExit && r.sel.late != 0:
		return fmt.Errorf("late= is for TIMEWAIT_EXIT, not for %s", s)
	case r.cm != rdmacm.Rejected && r.sel.reason != 0:
		return fmt.Errorf("reason= is for REJECTED, not for %s", s)
	case r.cm != rdmacm.AddrChange && r.sel.after != 0:
		return fmt.Errorf("after= is for ADDR_CHANGE, not for %s", s)
	}
	return nil
}

func (r *Rule) setAddr(s string) (err error) {
	if a, ok := strings.CutPrefix(s, "-"); ok {
		r.remove = true
		addr, err := netip.ParseAddr(a)
		if err != nil || addr.Zone() != "" {
			return fmt.Errorf("%q is not an address: write it as addr=-10.0.0.1", a)
		}
		r.prefix = netip.PrefixFrom(addr, addr.BitLen())
		return nil
	}
	a, ok := strings.CutPrefix(s, "+")
	if r.prefix, err = netip.ParsePrefix(a); !ok || err != nil {
		return fmt.Errorf("%q: write addr=-10.0.0.1 to remove an address, addr=+10.0.0.7/24 to add one", s)
	}
	return nil
}
