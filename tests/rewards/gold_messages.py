"""Pairs of NetHack messages written by hand, with the one that a good player would rather see.

``GOLD`` is for the default goal: score, by slaying, gold and depth, without dying. ``STEERING``
says for the other goals which of two messages they ask for. None of the messages is an example in
a prompt. Every second pair of a kind was never looked at while prompts were written: see
`held_out`.
"""

from __future__ import annotations

from typing import NamedTuple


class GoldPair(NamedTuple):
    """Two messages, the better one first.

    Args:
        better: The message that the goal prefers.
        worse: The other one.
        kind: What the pair is about.
    """

    better: str
    worse: str
    kind: str


_BY_KIND: dict[str, tuple[tuple[str, str], ...]] = {
    "slaying": (
        ("You kill the newt!", "It's a wall."),
        ("You kill the sewer rat!", "You miss the sewer rat."),
        ("You kill the gnome lord!", "The gnome lord hits!"),
        ("You destroy the kobold zombie!", "You see here a kobold corpse."),
        ("You kill the giant beetle!", ""),
        ("You kill the hill orc!", "You can't go down here."),
        ("You kill the jackalwere!", "The jackalwere bites!"),
        ("You destroy the gnome zombie!", "You kick at empty space."),
        ("You kill it!", "It bites!"),
        ("You kill the goblin!", "Never mind."),
        ("You kill the cave spider!", "You have a little trouble lifting m - a boulder."),
        ("You kill the dingo!", "You are hit by an arrow."),
        ("You kill the homunculus!", "The homunculus bites!  You fall asleep!"),
        ("You kill the giant ant!", "The giant ant bites!  The giant ant bites!"),
        ("You kill the werejackal!", "You feel feverish."),
        ("You kill the floating eye!", "You are frozen by the floating eye's gaze!"),
        ("You kill the yellow mold!", "You are splashed by the yellow mold's acid!"),
        ("You kill the hostile dwarf!", "The dwarf swings her mattock.  The dwarf hits!"),
    ),
    "fighting": (
        ("You hit the newt.", "You miss the newt."),
        ("You hit the jackal.", "The jackal bites!"),
        ("You strike the goblin!", "You stop.  There is a wall in the way."),
        ("You kick the rat.", "Ouch!  That hurts!"),
        ("The goblin misses!", "The goblin hits!"),
        ("The arrow misses you.", "You are hit by an arrow!"),
        ("You hit the large kobold!", "The large kobold hits!"),
        ("The gnome turns to flee.", "The gnome hits!"),
        ("You punch the grid bug.", "The grid bug bites!"),
        ("You hit it.", "It hits!"),
        ("You strike the hill orc!", "You strike at thin air."),
        ("The jackal just misses!", "The jackal bites!"),
        ("You hit the acid blob!", "You feel a little sick."),
        ("The lichen misses!", "The lichen touches you!  You cannot escape from the lichen!"),
    ),
    "gold": (
        ("$ - 23 gold pieces.", "You see no gold here."),
        ("$ - 117 gold pieces.", "It's solid stone."),
        ("$ - 8 gold pieces (52 in total).", "Your purse feels lighter."),
        ("$ - 64 gold pieces (310 in total).", "You don't have enough money to buy it."),
        ("You see here 41 gold pieces.", "You see here a rock."),
        ("$ - 99 gold pieces.", "You see here 2 rocks."),
        ("You find 75 gold pieces.", "There is nothing here to pick up."),
        ("$ - 15 gold pieces (15 in total).", "The leprechaun steals your purse!"),
        ("$ - 230 gold pieces.", "Unknown command ' '."),
        ("$ - 36 gold pieces (88 in total).", ""),
        ("There are 50 gold pieces here.", "You hear someone counting money."),
        ("$ - 12 gold pieces.", "You stumble over a rock."),
    ),
    "stairs": (
        ("You descend the stairs.", "You can't go down here."),
        ("There is a staircase down here.", "It's a wall."),
        ("You go down the ladder.", "You can't go up here."),
        ("There is a staircase down here.", "There is nothing here."),
        ("You walk down the stairs to the next level.", "You bump into a wall."),
        ("You descend to dungeon level 3.", "You stand still."),
        ("There is a ladder down here.", "You see here an empty tin."),
        ("You climb down the stairs.", "You are held back by the newt."),
        ("You arrive at dungeon level 5.", "There are no stairs here."),
        ("You descend the stairs.  You see here a mace.", "You stop.  Solid stone is in the way."),
    ),
    "experience": (
        ("Welcome to experience level 2.", "It's solid stone."),
        ("Welcome to experience level 4.", "Goodbye level 4."),
        ("You kill the imp!  Welcome to experience level 3.", "The imp hits!"),
        ("You feel more experienced.", "You feel less experienced."),
        ("Welcome back to experience level 5.", "You lose a level."),
        ("You feel stronger!", "You feel weaker!"),
        ("You feel wise!", "You feel foolish!"),
        ("You feel agile!", "You feel clumsy!"),
        ("You feel tough!", "You feel fragile!"),
        ("You feel more confident in your fighting skills.", "You feel unable to fight."),
        ("You feel quick!", "You feel yourself slowing down."),
        ("Your movements are now silenced.", "Your armor rusts."),
    ),
    "items": (
        ("f - a white potion.", "You see no objects here."),
        ("g - a scroll labeled DUAM XNAHT.", "There is nothing here to pick up."),
        ("You see here a silver dagger.", "It's a wall."),
        ("h - a silver wand.", "Your pack is empty."),
        ("You see here a food ration.", "You see here a rotten tomato."),
        ("i - 2 cursed scrolls.", "The scrolls burn up!"),
        ("j - a food ration.", "You have nothing to eat."),
        ("You see here an amulet.", "You see here some broken glass."),
        ("You are now wearing a helmet.", "Your helmet is stolen!"),
        ("You have a new spell book.", "The book crumbles to dust."),
        ("You open the chest and find a ring.", "The chest is locked."),
        ("k - an uncursed blue gem.", "The potion breaks and you are burned!"),
        ("You learn a new spell!", "Your spell book is destroyed!"),
        ("You find a magic lamp.", "Your lamp goes out."),
    ),
    "doors": (
        ("The door opens.", "This door is locked."),
        ("As you kick the door, it crashes open!", "WHAMM!"),
        ("As you kick the door, it shatters to pieces!", "WHAMMM!!"),
        ("You find a hidden door.", "You find nothing."),
        ("You find a hidden passage.", "It's solid stone."),
        ("You succeed in unlocking the door.", "You fail to unlock the door."),
        ("The door opens.", "The door is stuck."),
        ("You succeed in picking the lock.", "Your lock pick breaks."),
        ("You break open the door.", "Ouch!  You hurt your foot on the door."),
        ("You squeeze through the gap.", "You are carrying too much to get through."),
        ("You discover a secret passage.", "You can't move diagonally out of a doorway."),
        ("The drawbridge comes down.", "The drawbridge slams shut on you!"),
    ),
    "hunger": (
        ("You finish eating the food ration.", "You are beginning to feel hungry."),
        ("That food really hit the spot!", "You are beginning to feel weak."),
        ("This apple is delicious!", "Ulch - that food was rotten!"),
        ("You feel full.", "You faint from lack of food."),
        ("This meat tastes great.", "You feel sick and vomit."),
        ("You are no longer hungry.", "You are starving."),
        ("You eat the pancake.  Delicious!", "You die from starvation."),
        ("The newt corpse tastes okay.", "You choke on your food."),
        ("You finish your meal.", "You are weak from hunger."),
        ("You feel well fed.", "The world spins and goes dark."),
        ("You finish eating the lichen corpse.", "You feel deathly sick."),
        ("This pear is tasty!", "The food is poisoned!"),
    ),
    "healing": (
        ("You feel better.", "You feel worse."),
        ("You feel much better.", "You feel very sick."),
        ("Your wounds heal.", "Your wounds bleed."),
        ("You can see again.", "You are blinded by the flash!"),
        ("You are no longer confused.", "You feel confused."),
        ("You wake up, fully rested.", "You fall asleep."),
        ("You are completely healed.", "You are badly wounded."),
        ("You can move again.", "You can't move!"),
        ("The pain goes away.", "You have an awful headache."),
        ("You feel cured.  What a relief!", "You feel sick from the poison."),
    ),
    "prayer and spells": (
        ("You feel that Shan Lai Ching is well-pleased.", "You feel that your god is displeased."),
        ("You are surrounded by a shimmering light.", "You feel guilty."),
        ("You feel a hopeful feeling.", "You have a sad feeling for a moment."),
        ("The spell hits the orc and kills it!", "You fail to cast the spell correctly."),
        ("The magic missile kills the wolf!", "You don't have enough energy to cast that spell."),
        ("You feel a surge of magical energy.", "You feel your magical energy drain away!"),
        ("You feel protected.", "You feel unprotected."),
        ("You feel lucky.", "You feel that you are cursed."),
        ("The sleep ray hits the soldier ant.", "The sleep ray bounces and hits you!"),
        ("You feel like someone is helping you.", "You are struck by lightning!"),
        ("A map of the level appears in your mind!", "You forget the map of the level."),
        ("Your god fixes all your troubles.", "Your god strikes you down!"),
    ),
    "traps": (
        ("You escape from the bear trap.", "A bear trap closes on your foot!"),
        ("You crawl out of the pit.", "You fall into a pit!"),
        ("You disarm the trap.", "You land on a set of sharp iron spikes!"),
        ("You find a trap and avoid it.", "You set off a land mine!"),
        ("You escape a sleeping gas trap.", "A cloud of gas puts you to sleep!"),
        ("You jump over the trap.", "A little dart shoots out at you!  The dart was poisoned!"),
        ("You free yourself from the web.", "You are stuck to the web."),
        ("The falling rock misses you.", "A rock falls on your head!"),
        ("You are safe from the fire.", "A tower of flame bursts from the floor!"),
        ("You avoid the trap door.", "A gush of water hits you!  Your armor rusts!"),
        ("You find a bear trap.", "You step on a bear trap and hurt your leg!"),
        ("You pull free of the mud.", "You are stuck in the mud."),
    ),
    "death": (
        ("You kill the jackal!", "You die..."),
        ("", "You die..."),
        ("You hit the dwarf.", "You are killed by the dwarf."),
        ("You see here a dagger.", "You turn to stone."),
        ("You escape from the soldier ant.", "The soldier ant kills you."),
        ("Your medallion saves your life!", "You die from your wounds."),
        ("You survive the attack.", "You drown."),
        ("You feel alive.", "You are dead."),
        ("You resist the poison.", "The poison was deadly..."),
        ("You feel a mild tingle.", "The electric shock kills you!"),
        ("$ - 3 gold pieces.", "You starve to death."),
        ("There is a fountain here.", "You burn to death in the lava."),
    ),
    "thieves and pets": (
        ("Your kitten kills the newt.", "Your kitten is killed by the newt."),
        ("The nymph misses you.", "The nymph steals your cloak!"),
        ("You recover your stolen wand.", "The monkey steals your wand!"),
        ("Your dog eats a tripe ration.", "You hear the shrieks of your dying dog."),
        ("Your pony looks healthy.", "You have a sad feeling: your pony has died."),
        ("You catch the thief.", "The thief runs away with your gold."),
        ("Your little dog bites the jackal.", "Your little dog turns against you."),
        ("You swap places with your kitten.", "Your kitten is in the way."),
    ),
    "failures and no-ops": (
        ("You see here a long sword.", "Unknown command 'M'."),
        ("You open the box.", "You can't reach the floor."),
        ("You kill the bat!", "What do you want to eat? [fgh or ?*]"),
        ("You now wield the sword.", "You have nothing to wield."),
        ("You find a ring.", "You find nothing after a long search."),
        ("You read the scroll.  Your armor glows.", "You can't read while blind."),
        ("You push the boulder.", "You try to move the boulder but in vain."),
        ("You throw the dagger and hit the newt.", "You throw the dagger and miss."),
        ("You are making good progress.", "You are going nowhere."),
        ("You enter a treasure room.", "You are back where you started."),
        ("You dig through the wall.", "The wall is too hard to dig into."),
        ("You buy a lamp for 10 gold pieces.", "The shopkeeper gets angry!"),
        ("The lock opens.", "Nothing happens."),
        ("You gain a level.", "You waste a turn."),
        ("You kill the hornet!", "You have nothing to throw."),
        ("You strike the gnome!", "In what direction?"),
    ),
}

GOLD: tuple[GoldPair, ...] = tuple(
    GoldPair(better, worse, kind) for kind, pairs in _BY_KIND.items() for better, worse in pairs
)

_COMBAT = (
    ("You kill the newt!", "$ - 23 gold pieces."),
    ("You kill the giant beetle!", "You descend the stairs."),
    ("You hit the jackal.", "$ - 117 gold pieces."),
    ("You destroy the kobold zombie!", "There is a staircase down here."),
    ("You strike the goblin!", "You see here 41 gold pieces."),
    ("You kill it!", "You walk down the stairs to the next level."),
    ("You kill the hill orc!", "$ - 64 gold pieces (310 in total)."),
    ("You hit the large kobold!", "You go down the ladder."),
    ("You kill the gnome lord!", "It's a wall."),
    ("You kill the goblin!", "f - a white potion."),
    ("You hit the newt.", "There is nothing here to pick up."),
    ("You kill the dingo!", "$ - 8 gold pieces (52 in total)."),
    ("You kill the cave spider!", "You climb down the stairs."),
    ("You punch the grid bug.", "$ - 99 gold pieces."),
    ("You kick the rat.", "You descend to dungeon level 3."),
    ("You kill the imp!  Welcome to experience level 3.", "There is a ladder down here."),
    ("You strike the hill orc!", "$ - 230 gold pieces."),
    ("The magic missile kills the wolf!", "You find 75 gold pieces."),
    ("You hit it.", "You can't go down here."),
    ("You kill the floating eye!", "The door opens."),
    ("You kill the werejackal!", "$ - 15 gold pieces (15 in total)."),
    ("You destroy the gnome zombie!", "You arrive at dungeon level 5."),
    ("You kill the sewer rat!", ""),
    ("You hit the acid blob!", "$ - 36 gold pieces (88 in total)."),
)

_GOLD_SEEKING = (
    ("$ - 23 gold pieces.", "You kill the newt!"),
    ("$ - 117 gold pieces.", "You kill the giant beetle!"),
    ("$ - 8 gold pieces (52 in total).", "You hit the jackal."),
    ("You see here 41 gold pieces.", "You strike the goblin!"),
    ("$ - 64 gold pieces (310 in total).", "You descend the stairs."),
    ("$ - 99 gold pieces.", "There is a staircase down here."),
    ("You find 75 gold pieces.", "You kill it!"),
    ("$ - 15 gold pieces (15 in total).", "You kill the hill orc!"),
    ("$ - 230 gold pieces.", "It's a wall."),
    ("$ - 36 gold pieces (88 in total).", "You destroy the kobold zombie!"),
    ("There are 50 gold pieces here.", "You kill the gnome lord!"),
    ("$ - 12 gold pieces.", "You go down the ladder."),
    ("$ - 3 gold pieces.", "You kill the cave spider!"),
    ("$ - 23 gold pieces.", "Your purse feels lighter."),
    ("$ - 117 gold pieces.", "f - a white potion."),
    ("$ - 8 gold pieces (52 in total).", "You see here a rock."),
    ("You see here 41 gold pieces.", "There is nothing here to pick up."),
    ("$ - 64 gold pieces (310 in total).", "You kill the floating eye!"),
    ("$ - 99 gold pieces.", "Welcome to experience level 2."),
    ("You find 75 gold pieces.", "You descend to dungeon level 3."),
    ("$ - 15 gold pieces (15 in total).", "The door opens."),
    ("$ - 230 gold pieces.", "You hit the large kobold!"),
    ("$ - 36 gold pieces (88 in total).", "The leprechaun steals your purse!"),
    ("There are 50 gold pieces here.", ""),
)

_STAIRS = (
    ("You descend the stairs.", "You kill the newt!"),
    ("There is a staircase down here.", "$ - 23 gold pieces."),
    ("You go down the ladder.", "You kill the giant beetle!"),
    ("You walk down the stairs to the next level.", "$ - 117 gold pieces."),
    ("You descend to dungeon level 3.", "You hit the jackal."),
    ("There is a ladder down here.", "You see here 41 gold pieces."),
    ("You climb down the stairs.", "You kill it!"),
    ("You arrive at dungeon level 5.", "$ - 64 gold pieces (310 in total)."),
    ("You descend the stairs.  You see here a mace.", "You strike the goblin!"),
    ("You descend the stairs.", "You can't go down here."),
    ("There is a staircase down here.", "It's a wall."),
    ("You go down the ladder.", "$ - 99 gold pieces."),
    ("You walk down the stairs to the next level.", "You destroy the kobold zombie!"),
    ("You descend to dungeon level 3.", "f - a white potion."),
    ("There is a ladder down here.", "You kill the hill orc!"),
    ("You climb down the stairs.", "You find 75 gold pieces."),
    ("You arrive at dungeon level 5.", "You kill the gnome lord!"),
    ("You descend the stairs.  You see here a mace.", ""),
    ("You descend the stairs.", "$ - 230 gold pieces."),
    ("There is a staircase down here.", "You kill the cave spider!"),
    ("You go down the ladder.", "You can't go up here."),
    ("You walk down the stairs to the next level.", "Welcome to experience level 2."),
    ("You descend to dungeon level 3.", "$ - 8 gold pieces (52 in total)."),
    ("There is a ladder down here.", "You hit the large kobold!"),
)

STEERING: dict[str, tuple[GoldPair, ...]] = {
    goal: tuple(GoldPair(better, worse, goal) for better, worse in pairs)
    for goal, pairs in (("combat", _COMBAT), ("gold", _GOLD_SEEKING), ("stairs", _STAIRS))
}


def held_out(pairs: tuple[GoldPair, ...]) -> tuple[GoldPair, ...]:
    """Return the pairs that prompts were not tuned on: every second one."""
    return pairs[1::2]


def as_shown(pairs: tuple[GoldPair, ...]) -> list[tuple[str, str, int]]:
    """Return (first, second, preference) with the better one first in every other pair."""
    return [
        (pair.better, pair.worse, 0) if place % 2 == 0 else (pair.worse, pair.better, 1)
        for place, pair in enumerate(pairs)
    ]
