package impair

import (
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
)

func TestParse(t *testing.T) {
	c := parse(t, " loss=1%, in.reorder=0.005,out.delay=1ms±200us,burst=1%/20%,rate=100mbit,seed=7,"+
		"corrupt=read-response:3-,limit=5,hold=2ms,in.queue=64kb,in.ecn=1000/20kb,out.ecn=1mb")
	if c.Seed != 7 || c.In.Loss != 0.01 || c.Out.Loss != 0.01 || c.In.Reorder != 0.005 || c.Out.Reorder != 0 {
		t.Errorf("%+v", c)
	}
	if c.Out.Delay != time.Millisecond || c.Out.Jitter != 200*time.Microsecond || c.In.Delay != 0 {
		t.Errorf("%+v", c)
	}
	if c.In.Burst != (Burst{0.01, 0.2}) || c.Out.Rate != 100e6 || c.In.Limit != 5 || c.In.Hold != 2*time.Millisecond {
		t.Errorf("%+v", c)
	}
	if c.In.Queue != 64000 || c.Out.Queue != 0 || c.In.ECN != (ECN{1000, 20000}) || c.Out.ECN != (ECN{Min: 1e6}) {
		t.Errorf("%+v", c)
	}
	if r := c.In.Rules; len(r) != 1 || r[0].Nth != 3 || r[0].Count != -1 || r[0].Action != Corrupt {
		t.Errorf("rules %+v", r)
	}
	for text, want := range map[string]string{
		"loss":                     "setting=value",
		"loss=":                    "setting=value",
		"loss=150%":                `"150%" is not a probability`,
		"loss=x":                   "not a probability",
		"loss=NaN":                 "not a probability",
		"wobble=1":                 `unknown setting "wobble"`,
		"in.seed=1":                `unknown setting "seed"`,
		"delay=5":                  `"5" is not a time`,
		"delay=-5ms":               "not a time",
		"delay=1ms±x":              `"x" is not a time`,
		"delay=1ms±2ms":            "Jitter must not exceed Delay",
		"burst=1%":                 "two probabilities",
		"burst=1%/0":               "never end",
		"rate=fast":                `"fast" is not a rate`,
		"rate=0":                   "not a rate",
		"queue=0":                  "lets nothing pass",
		"queue=5gb":                "not a number of bytes",
		"queue=64kb":               "without Rate",
		"rate=1gbit,ecn=20kb/10kb": "no Max below Min",
		"ecn=5":                    "without Rate",
		"limit=0":                  "1 or more",
		"seed=-1":                  "not a number",
		"drop=5%":                  "unknown class",
		"drop=reed-response":       "read-response",
		"drop=ack:0":               "count from 1",
		"drop=ack:":                "count from 1",
		"drop=ack:5-3":             "not below the first",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Parse(%q) = %v, want an error with %q", text, err, want)
		}
	}
}

// FuzzParse checks that New accepts every configuration that Parse accepts.
func FuzzParse(f *testing.F) {
	f.Add("loss=1%,reorder=0.5%,delay=1ms±200us,seed=7")
	f.Add("rate=1gbit,queue=256kb,ecn=20kb/200kb")
	f.Add("in.rate=100mbit,out.burst=1%/20%,drop=read-response:3-5,dup=ack:*,corrupt=any:2-")
	p := new(pipe.Switch).Port()
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := Parse(text); err == nil {
			if _, err := New(p, &c); err != nil {
				t.Errorf("Parse accepted %q, New did not: %v", text, err)
			}
		}
	})
}
