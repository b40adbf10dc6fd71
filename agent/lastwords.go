package agent

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// How many characters of what a business said last stand beside what the owner decides
// on, where that is more than both: of its beginning, and of its end, where a question
// stands.
const (
	lastWordsHead = 300
	lastWordsTail = 1000
)

// partsLeftOut stands behind what is kept of a reply that had parts which are not text.
const partsLeftOut = "[parts that are not text are left out]"

// kept is what is kept of a reply's words. That more came than text is said in it: a
// question can stand there.
func (t ReplyText) kept() string {
	if t.OtherParts == 0 {
		return t.Text
	}
	return strings.TrimPrefix(truncate(t.Text, maxReply-len(partsLeftOut)-1)+"\n"+partsLeftOut, "\n")
}

// lastReply is what a business answered last in a conversation, and whether it did.
func (v *ConversationView) lastReply() (said string, replied bool) {
	for _, m := range v.Messages {
		if m.Reply != "" || m.State == messageReplied {
			said, replied = m.Reply, true
		}
	}
	return said, replied
}

// wordless reports a text in which nobody sees anything.
func wordless(text string) bool { return strings.TrimSpace(Visible(text)) == "" }

// LastWords is what a business said last in a conversation, for who decides on a message
// that goes on with it: the same words mean another thing there. It is redacted, without
// characters that nobody sees, and without what hide takes out (nil: nothing), and only
// then cut, in its midst, where it says so; goesOn tells whether anything was said in the
// conversation before, but for an introduction that is not answered.
func LastWords(v ConversationView, hide func(text string) string) (said string, goesOn bool) {
	for _, m := range v.Messages {
		goesOn = goesOn || !m.Introduction || m.Reply != ""
	}
	reply, replied := v.lastReply()
	if wordless(reply) {
		if replied {
			return "[an answer without text]", goesOn
		}
		return "", goesOn
	}
	said = RedactText(Visible(reply))
	if hide != nil {
		said = hide(said)
	}
	all := []rune(said)
	if left := len(all) - lastWordsHead - lastWordsTail; left > 0 {
		said = fmt.Sprintf("%s …\n[%d characters are left out here]\n… %s",
			string(all[:lastWordsHead]), left, string(all[lastWordsHead+left:]))
	}
	if utf8.RuneCountInString(reply) >= maxReply {
		said += " …\n[more than this is not kept]"
	}
	return said, goesOn
}
