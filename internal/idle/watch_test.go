package idle

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestWatch(t *testing.T) {
	var w Watch
	if w.Polled() || w.End() {
		t.Error("polled before the first poll")
	}
	if !w.Poll() || w.Poll() || !w.Polled() {
		t.Error("the first poll begins polling, and the second does not")
	}
	if polls, ended := w.Look(); !polls || ended || !w.Polled() {
		t.Error("ended with polls since the last look")
	}
	if w.Poll() {
		t.Error("a poll after a look begins polling")
	}
	w.Look()
	if polls, ended := w.Look(); polls || !ended || w.Polled() {
		t.Error("goes on without a poll")
	}
	if polls, ended := w.Look(); polls || ended {
		t.Error("ended twice")
	}
	if w.Poll(); !w.End() || w.End() {
		t.Error("End reports once that it has ended polling")
	}
}

func TestSharedWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w SharedWatch
		if w.Polled() {
			t.Error("polled before the first poll")
		}
		w.Poll()
		time.Sleep(PollTimeout - 1)
		if !w.Polled() {
			t.Error("ended too soon")
		}
		time.Sleep(time.Nanosecond)
		if w.Polled() {
			t.Errorf("goes on %v after the last poll", PollTimeout)
		}
		if !w.End() || w.End() {
			t.Error("End reports once that there were polls")
		}
	})
}
