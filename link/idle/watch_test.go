package idle

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestWatch(t *testing.T) {
	var w Watch
	if w.Polling() || w.End() {
		t.Error("polled before the first poll")
	}
	if !w.Poll() || w.Poll() || !w.Polling() {
		t.Error("the first poll begins polling, and the second does not")
	}
	if polls, ended := w.Look(); !polls || ended || !w.Polling() {
		t.Error("ended with polls since the last look")
	}
	if w.Poll() {
		t.Error("a poll after a look begins polling")
	}
	w.Look()
	if polls, ended := w.Look(); polls || !ended || w.Polling() {
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
		if w.Polling() {
			t.Error("polled before the first poll")
		}
		w.Poll()
		time.Sleep(PollingEndsAfter - 1)
		if !w.Polling() {
			t.Error("ended too soon")
		}
		time.Sleep(time.Nanosecond)
		if w.Polling() {
			t.Errorf("goes on %v after the last poll", PollingEndsAfter)
		}
		if !w.End() || w.End() {
			t.Error("End reports once that there were polls")
		}
	})
}
