package conformance

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// An outcome belongs to a WC status or an asynchronous event. It names the test that produces it,
// as file.Function below the repository's root, or the reason why nothing can.
type outcome struct{ test, none string }

func from(test string) outcome { return outcome{test: test} }

func never(why string) outcome { return outcome{none: why} }

var (
	noRD = never("reliable datagrams, which no device has")
	noTM = never("tag matching, which the device has not")
	noIB = never("of InfiniBand: Ethernet has no subnet manager")
)

var statusFrom = map[verbs.WCStatus]outcome{
	verbs.WCSuccess:          from("rdmatransport/window_test.go:TestWindows"),
	verbs.WCLocLenErr:        from("rdmatransport/internal/rocetransport/refusal_test.go:TestRefusals"),
	verbs.WCLocQPOpErr:       from("rdmatransport/direct_guard_test.go:TestDirectGuards"),
	verbs.WCLocEECOpErr:      noRD,
	verbs.WCLocProtErr:       from("rdmatransport/window_test.go:TestFaults"),
	verbs.WCWRFlushErr:       from("rdmatransport/window_test.go:TestLocalFailures"),
	verbs.WCMWBindErr:        from("rdmatransport/window_test.go:TestLocalFailures"),
	verbs.WCBadRespErr:       from("rdmatransport/internal/rocetransport/requester_test.go:TestBadResponses"),
	verbs.WCLocAccessErr:     from("rdmatransport/srqpd_test.go:TestWriteWithImmRefused"),
	verbs.WCRemInvReqErr:     from("rdmatransport/window_test.go:TestInvalidateRemotely"),
	verbs.WCRemAccessErr:     from("rdmatransport/window_test.go:TestWindows"),
	verbs.WCRemOpErr:         from("rdmatransport/window_test.go:TestFaults"),
	verbs.WCRetryExcErr:      from("rdmatransport/internal/rocetransport/retry_test.go:TestTimeout"),
	verbs.WCRNRRetryExcErr:   from("rdmatransport/internal/rocetransport/retry_test.go:TestRNRRetries"),
	verbs.WCLocRDDViolErr:    noRD,
	verbs.WCRemInvRDReqErr:   noRD,
	verbs.WCRemAbortErr:      noRD,
	verbs.WCInvEECNErr:       noRD,
	verbs.WCInvEECStateErr:   noRD,
	verbs.WCFatalErr:         never("a device that breaks: software does not, the process ends"),
	verbs.WCRespTimeoutErr:   never("a peer is given up with RETRY_EXC_ERR"),
	verbs.WCGeneralErr:       never("every error has its own status"),
	verbs.WCTMErr:            noTM,
	verbs.WCTMRndvIncomplete: noTM,
}

var eventFrom = map[verbs.AsyncEventType]outcome{
	verbs.EventCQErr:            from("verbs/cq_test.go:TestOverrun"),
	verbs.EventQPFatal:          from("verbs/cq_test.go:TestOverrun"),
	verbs.EventQPReqErr:         from("rdmatransport/internal/rocetransport/state_test.go:TestEvents"),
	verbs.EventQPAccessErr:      from("rdmatransport/internal/rocetransport/state_test.go:TestEvents"),
	verbs.EventCommEst:          from("rdmatransport/internal/rocetransport/state_test.go:TestEvents"),
	verbs.EventSQDrained:        from("rdmatransport/internal/rocetransport/drain_test.go:TestSQD"),
	verbs.EventPathMig:          never("automatic path migration, which the device does not report"),
	verbs.EventPathMigErr:       never("automatic path migration, which the device does not report"),
	verbs.EventDeviceFatal:      never("a device that breaks: software does not, the process ends"),
	verbs.EventPortActive:       from("tests/system/netns/carrier_test.go:TestCarrier"),
	verbs.EventPortErr:          from("tests/system/netns/carrier_test.go:TestCarrier"),
	verbs.EventLIDChange:        noIB,
	verbs.EventPKeyChange:       noIB,
	verbs.EventSMChange:         noIB,
	verbs.EventSRQErr:           never("an SRQ that breaks: software's does not"),
	verbs.EventSRQLimitReached:  from("rdmatransport/srq_test.go:TestSRQAcrossTransports"),
	verbs.EventQPLastWQEReached: from("verbs/srq_test.go:TestLastWQE"),
	verbs.EventClientReregister: noIB,
	verbs.EventGIDChange:        from("rdmatransport/gid_test.go:TestGIDChange"),
	verbs.EventWQFatal:          never("work queues without a QP, which the device has not"),
}

// TestOutcomes fails if a status or an event has neither a test nor a reason. It also fails if the
// test does not exist or does not mention the name.
func TestOutcomes(t *testing.T) {
	for s := verbs.WCStatus(0); !strings.HasPrefix(s.String(), "invalid"); s++ {
		o, found := statusFrom[s]
		o.check(t, found, s.String())
	}
	for e := verbs.AsyncEventType(0); !strings.HasPrefix(e.String(), "invalid"); e++ {
		o, found := eventFrom[e]
		o.check(t, found, e.String())
	}
}

func (o outcome) check(t *testing.T, found bool, name string) {
	t.Helper()
	if !found || (o.test == "") == (o.none == "") {
		t.Errorf("%s needs a test, or a reason for none", name)
		return
	}
	if o.none != "" {
		return
	}
	file, function, _ := strings.Cut(o.test, ":")
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../..", file), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	exists, spoken := false, false
	same := func(s string) bool { return strings.EqualFold(strings.ReplaceAll(name, "_", ""), s) }
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			exists = exists || n.Name.Name == function
		case *ast.SelectorExpr:
			for _, prefix := range []string{"WC", "Event"} {
				if s, ok := strings.CutPrefix(n.Sel.Name, prefix); ok && same(s) {
					spoken = true
				}
			}
		case *ast.BasicLit:
			spoken = spoken || strings.Contains(n.Value, name)
		}
		return true
	})
	if !exists || !spoken {
		t.Errorf("%s: %s has no %s, or does not mention it", name, file, function)
	}
}
