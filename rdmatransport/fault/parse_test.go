package fault_test

import (
	"strings"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/fault"
)

// TestGrammar: the rules of the grammar's text, and those of each call, are rules.
func TestGrammar(t *testing.T) {
	n := 0
	for line := range strings.Lines(fault.Grammar) {
		first, _, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if !strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "   ") {
			continue
		}
		for text := range strings.SplitSeq(first, ", ") {
			if _, err := fault.Parse(text); err != nil {
				t.Error(err)
			}
			n++
		}
	}
	if n < 19 {
		t.Errorf("the grammar has %d rules", n)
	}
	for _, call := range fault.Calls() {
		for _, errno := range fault.Errnos(call) {
			if r, err := fault.Parse("ibv_" + call + "=" + errno + ":2-7"); err != nil || len(r) != 1 {
				t.Errorf("%v, %v", r, err)
			}
		}
	}
}

// TestParseErrors: an error names what is wrong, and what is allowed.
func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"reg_mr":                               "WHAT=EFFECT",
		"reg_mr=":                              "WHAT=EFFECT",
		"register=ENOMEM":                      "alloc_pd",
		"get_cq_event=EIO":                     "neither a call",
		"reg_mr=ENOENTRY":                      `"ENOENTRY" is not an errno`,
		"post_send=EBUSY":                      "ENOMEM, EINVAL, EFAULT",
		"reg_mr=ENOMEM:0":                      ":3-5",
		"reg_mr=ENOMEM:5-3":                    "not below",
		"reg_mr=ENOMEM:x":                      ":1%",
		"reg_mr=ENOMEM:0%":                     "share",
		"reg_mr=ENOMEM:NaN%":                   "share",
		"reg_mr:nth=3=ENOMEM:4":                "leave one out",
		"modify_qp:rtx=EINVAL":                 "no selector",
		"reg_mr:rtr=EINVAL":                    "no selector",
		"reg_mr:opcode=send=ENOMEM":            "does not apply",
		"wc:opcode=get=RETRY_EXC_ERR":          "atomic, local, read, send, write, recv",
		"wc=WR_FLUSH_ERR":                      "RETRY_EXC_ERR",
		"wc=SUCCESS":                           "neither a time",
		"wc:opcode=recv=RETRY_EXC_ERR":         "LOC_PROT_ERR or LOC_LEN_ERR",
		"wc:opcode=send=REM_ACCESS_ERR":        "opcode=send",
		"wc:opcode=write=MW_BIND_ERR":          "opcode=write",
		"wc:qp=0=RETRY_EXC_ERR":                "from 1 to",
		"wc:qp=16777216=RETRY_EXC_ERR":         "2^24",
		"wc:late=1s=5ms":                       "leave it out",
		"wc=0ms":                               "not a time",
		"cq=25h":                               "not a time",
		"event=PORT_ERR":                       "port=down",
		"event=SQ_DRAINED":                     "QP_FATAL",
		"event:after=1s,nth=2=QP_FATAL":        "leave one out",
		"cm=ESTABLISHED":                       "REJECTED",
		"cm=TIMEWAIT_EXIT":                     "late",
		"cm:late=1s=REJECTED":                  "TIMEWAIT_EXIT",
		"cm:reason=3=UNREACHABLE":              "REJECTED",
		"cm:after=1s=REJECTED":                 "ADDR_CHANGE",
		"port=off":                             "down",
		"port:for=1s=up":                       "down",
		"port:port=256=down":                   "2^8",
		"addr=10.0.0.1":                        "addr=+10.0.0.7/24",
		"addr=+10.0.0.1":                       "addr=+10.0.0.7/24",
		"addr=-10.0.0.1/24":                    "not an address",
		"mtu=100":                              "576",
		"device=slow":                          "gone",
		"mr=moved":                             "revoked",
		"mr:lkey=x=revoked":                    "number",
		"reg_mr=ENOMEM; ; create_cq=EXDEV; x=": "create_cq=EXDEV",
	} {
		if _, err := fault.Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
	if r, err := fault.Parse("reg_mr=ENOMEM;none;reg_mr=EIO"); err != nil || len(r) != 2 || r[0].String() != "none" {
		t.Errorf("none: %v, %v", r, err)
	}
}

// FuzzParse: an arbitrary text is an error, or rules whose texts are these rules.
func FuzzParse(f *testing.F) {
	for line := range strings.Lines(fault.Grammar) {
		text, _, _ := strings.Cut(strings.TrimSpace(line), "  ")
		f.Add(text)
	}
	f.Add("wc:qp=5,opcode=read,late=5ms=RETRY_EXC_ERR:3-; none;reg_mr=EIO:5%")
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := fault.Parse(text)
		if err != nil {
			return
		}
		for _, r := range rules {
			if again, err := fault.Parse(r.String()); err != nil || len(again) != 1 || again[0].String() != r.String() {
				t.Errorf("%q: %v, %v", r, again, err)
			}
		}
	})
}
